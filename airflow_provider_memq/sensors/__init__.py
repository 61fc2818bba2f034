"""Tasks that wait."""

import airflow_provider_memq.versions  # noqa: F401 - refuses an older Airflow before it fails
