"""For tests of DAGs: a real Airflow on the loopback whose parts can be killed, and its REST API."""
