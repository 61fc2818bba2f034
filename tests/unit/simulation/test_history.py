"""The record of what happened in a run."""

from __future__ import annotations

import typing

from tests.simulation import history as h


def test_operation_goes_to_its_kind() -> None:
    """Each operation is kept in the list of its kind, in the order of recording."""
    quiet, life = h.Quiet(1, 2), h.Life(3, "broker", h.CRASHED)
    history = h.History(quiet, life, h.Life(4, "broker", h.STARTED))
    assert history.quiet == [quiet]
    assert history.lives[0] == life
    assert history.operations() == [*history.lives, *history.quiet]
    assert len(history) == 3
    assert repr(history) == "<History 2 lives, 1 quiet>"


def test_every_kind_of_operation_has_its_list() -> None:
    """No kind is forgotten: there are as many lists as kinds, and each takes its own."""
    kinds = typing.get_args(h.Operation)
    history = h.History()
    assert len(history.kinds()) == len(kinds)
    for kind in kinds:
        fields = len(kind._fields)
        history.add(kind(*[0] * fields))
    assert all(len(each) == 1 for each in history.kinds().values())
