"""Operators: plan ranges, run Spark over them, process the past, commit, audit, watch retention."""
