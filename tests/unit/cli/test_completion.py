"""Completion: which words a line has, and which parameters know what they may be."""

from __future__ import annotations

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.cli.completion import GroupType, TopicType, join_words
from memq.cli.main import cli


def parameters(group=cli, path="memq"):
    """Every parameter with the path of its command."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from parameters(command, f"{path} {name}")
        else:
            yield from ((f"{path} {name}", parameter) for parameter in command.params)


NEW_OR_OFFLINE = {"memq topic create", "memq recover"}
"""Commands whose topic does not exist yet, or that ask no broker."""


@pytest.mark.parametrize(
    ("path", "parameter"),
    [
        pytest.param(path, parameter, id=f"{path} {parameter.name}")
        for path, parameter in parameters()
        if parameter.name in ("topic", "group") or path.startswith(("memq topic", "memq group"))
        if parameter.name in ("topic", "group", "name") and path not in NEW_OR_OFFLINE
    ],
)
def test_names_can_be_completed(path, parameter):
    """Each parameter that names a topic or a group can be completed: it has that type."""
    shown = parameter.metavar or parameter.name
    is_group = "group" in (parameter.name, shown.lower())

    assert isinstance(parameter.type, GroupType if is_group else TopicType)


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (["topic", "cl"], ["topic", "cl"]),
        (["-b", "host", ":", "1", "cl"], ["-b", "host:1", "cl"]),
        (["--bootstrap", "=", "host", ":", "1", ""], ["--bootstrap=host:1", ""]),
        (["-b", "a", ":", "1,b", ":", "2", "cl"], ["-b", "a:1,b:2", "cl"]),
        (["--group", "=", "re"], ["--group=re"]),
        (["--group", "="], ["--group="]),
        (["--range", "0", ":", "1-2"], ["--range", "0:1-2"]),
        (["--key-separator", ":", "--he"], ["--key-separator", ":", "--he"]),
        ([":", "x"], [":", "x"]),
        ([""], [""]),
    ],
)
def test_words_are_joined(pieces, words):
    """What bash cuts at colons and equal signs is whole again."""
    assert join_words(pieces[:-1], pieces[-1]) == (words[:-1], words[-1])


@given(st.lists(st.text("ab-:=", max_size=4), min_size=1))
def test_no_piece_is_lost(pieces):
    """However the pieces lie, the words hold all of them in their order."""
    before, incomplete = join_words(pieces[:-1], pieces[-1])

    assert "".join([*before, incomplete]) == "".join(pieces)
