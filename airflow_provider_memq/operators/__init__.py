"""Operators: plan ranges, run Spark over them, process the past, commit, audit, watch retention."""

import airflow_provider_memq.versions  # noqa: F401 - refuses an older Airflow before it fails
