"""The broker core: formats, protocol, state machines and the two seams.

It imports nothing else of MemQ but `memq.errors`, and knows neither sockets nor Airflow nor Spark.
"""
