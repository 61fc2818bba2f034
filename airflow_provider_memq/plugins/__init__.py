"""The plugin of Airflow, by which it finds the page about topics."""
