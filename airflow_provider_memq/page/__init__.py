"""The page about topics in Airflow's UI: what is planned, processed, in tables and audited."""

PREFIX = "/memq"
