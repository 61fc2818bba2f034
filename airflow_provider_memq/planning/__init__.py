"""Which ranges of offsets come next: ranges, the ledger, what the brokers say, backfills."""
