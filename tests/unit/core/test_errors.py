"""Every error has a stable code, says what it means, and survives the wire."""

from __future__ import annotations

import pytest

from memq import errors
from memq.errors import MemqError, NotHostedError, from_code

ERRORS = [
    value for value in vars(errors).values() if isinstance(value, type) and value is not MemqError
]


@pytest.mark.parametrize("error", ERRORS)
def test_is_a_memq_error(error):
    """Whoever catches the root catches every error."""
    assert issubclass(error, MemqError)


@pytest.mark.parametrize("error", ERRORS)
def test_says_what_it_means(error):
    """Every error states its own code and its own docstring; neither is inherited."""
    assert "code" in vars(error)
    assert vars(error)["__doc__"]


def test_codes_are_unique():
    """No two errors share a code, or one would turn into the other on the wire."""
    codes = [error.code for error in [MemqError, *ERRORS]]

    assert sorted(codes) == sorted(set(codes))


@pytest.mark.parametrize("error", [MemqError, *ERRORS])
def test_round_trip_by_code(error):
    """A code and a text give back the very class, with the text unchanged."""
    restored = from_code(error.code, "value 7 exceeds limit 5")

    assert type(restored) is error
    assert str(restored) == "value 7 exceeds limit 5"


def test_unknown_code_becomes_the_root():
    """A code from a newer peer is kept in the text, and is not taken for retriable."""
    restored = from_code("from_the_future", "no more room")

    assert type(restored) is MemqError
    assert str(restored) == "from_the_future: no more room"
    assert not restored.retriable


def test_not_hosted_carries_the_address():
    """A redirect keeps where to go through the wire."""
    restored = from_code("not_hosted", "topic 'clicks' is elsewhere", "10.0.0.2:6367")

    assert isinstance(restored, NotHostedError)
    assert restored.address == "10.0.0.2:6367"
    assert restored.retriable
