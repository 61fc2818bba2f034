import pytest

import memq


def test_public_names():
    """Every public name can be had from the package, and `dir` shows it."""
    for name in memq.__all__:
        assert getattr(memq, name).__name__.rpartition(".")[2] == name
        assert name in dir(memq)
    assert memq.errors.MemqError.code == "internal"


def test_other_names():
    """A name that there is not is an ordinary AttributeError."""
    with pytest.raises(AttributeError, match="no attribute 'Customer'"):
        memq.Customer  # noqa: B018 - the access is what fails
