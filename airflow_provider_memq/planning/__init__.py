"""Which ranges of offsets come next: ranges, the ledger, what the brokers say, backfills."""

import airflow_provider_memq.versions  # noqa: F401 - refuses an older Airflow before it fails
