"""Immutable objects by key, behind one narrow seam."""
