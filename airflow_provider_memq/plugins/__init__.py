"""The plugin of Airflow: a page about topics."""

PREFIX = "/memq"
