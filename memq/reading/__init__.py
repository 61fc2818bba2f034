"""Planning and reading ranges of offsets, for every client, Spark, tables and the audit."""
