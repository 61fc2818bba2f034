"""A mark for tests that do what a message of the product advises its reader to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    Test = TypeVar("Test", bound=Callable[..., object])


def follows(*_: str) -> Callable[[Test], Test]:
    """Mark a test that provokes a message and does what it advises; documentation, no more.

    Args:
        *_: a part of the text of each such message.
    """
    return lambda test: test
