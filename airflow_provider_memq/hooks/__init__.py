"""The hook: one Airflow connection, and what can be asked over it."""

import airflow_provider_memq.versions  # noqa: F401 - refuses an older Airflow before it fails
