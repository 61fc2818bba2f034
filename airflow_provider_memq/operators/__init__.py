"""Operators: plan ranges, replay them, run Spark over them, commit, audit, watch retention."""
