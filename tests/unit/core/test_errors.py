"""Every error has a stable code, says what it means, and survives the wire."""

from memq import errors
from memq.errors import MemqError

ERRORS = [
    value for value in vars(errors).values() if isinstance(value, type) and value is not MemqError
]


def test_each_error_has_a_code_of_its_own():
    """None is inherited, nor is what it says; one would turn into another on the wire."""
    for error in ERRORS:
        assert {"code", "__doc__"} <= vars(error).keys(), error
        assert error.__doc__
    assert len({error.code for error in [MemqError, *ERRORS]}) == len(ERRORS) + 1
