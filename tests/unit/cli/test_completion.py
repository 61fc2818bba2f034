"""Completion: which parameters know what they may be."""

from __future__ import annotations

import click
import pytest

from memq.cli.command import GroupType, TopicType
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

    assert parameter.type._names is (GroupType if is_group else TopicType)()._names
