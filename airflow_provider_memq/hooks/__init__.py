"""The hook: one Airflow connection, and what can be asked over it."""
