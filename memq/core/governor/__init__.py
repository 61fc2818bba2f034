"""Which broker hosts what: topics, their configuration and their placement."""
