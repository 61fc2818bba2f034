"""Tasks that wait."""
