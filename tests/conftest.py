"""Settings shared by all tests."""

from __future__ import annotations

from hypothesis import settings

# No deadline: a busy machine is not a failing test. `--hypothesis-profile=thorough` looks longer.
settings.register_profile("default", max_examples=50, deadline=None, print_blob=True)
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=5_000)
settings.load_profile("default")
