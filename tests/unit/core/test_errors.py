"""Every error has a stable code, says what it means, and survives the wire."""

from __future__ import annotations

import pytest

from memq import errors
from memq.errors import MemqError

ERRORS = [
    value for value in vars(errors).values() if isinstance(value, type) and value is not MemqError
]


@pytest.mark.parametrize("error", ERRORS)
def test_says_what_it_means(error):
    """Every error states its own code and its own docstring; neither is inherited."""
    assert "code" in vars(error)
    assert vars(error)["__doc__"]


def test_codes_are_unique():
    """No two errors share a code, or one would turn into the other on the wire."""
    codes = [error.code for error in [MemqError, *ERRORS]]

    assert sorted(codes) == sorted(set(codes))
