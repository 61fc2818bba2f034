"""How a Spark program is run over one exact range, and its result checked."""

import airflow_provider_memq.versions  # noqa: F401 - refuses an older Airflow before it fails
