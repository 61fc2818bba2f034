"""Immutable objects by key, behind one narrow seam."""

from memq.core.storage.open import open_storage, open_uri

__all__ = ["open_storage", "open_uri"]
