"""What `memq recover` says is to be done next, and what `memq audit` ends with."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from memq.broker.recover import Outcome
from memq.cli import recover
from memq.cli.audit import exit_code
from memq.cli.main import main
from memq.core.topic import AUDIT_TOPIC


def outcome(action, topic="t", **fields):
    """What became of a topic."""
    return Outcome(**({"topic": topic, "action": action, "incarnation": "i"} | fields))


@pytest.fixture
def said(monkeypatch):
    """What is said on stderr."""
    found = []
    monkeypatch.setattr(recover, "notice", found.append)
    return found


@pytest.mark.parametrize("adopted", [False, True])
@pytest.mark.parametrize("topic", ["t", AUDIT_TOPIC])
@pytest.mark.parametrize("execute", [False, True])
@pytest.mark.parametrize("action", ["none", "restore", "rebuild"])
def test_what_is_to_be_done_next(said, action, execute, topic, adopted):
    """Only what was done has consequences, and only a topic that users know has options to set."""
    found = outcome(action, topic, groups=["g", "h"], incarnation="i2", adopted=adopted)
    recover._advise(found, execute)
    if action == "none":
        assert said == []
        return
    first, *more = said
    if not execute:
        assert first == f"{topic}: {action} would be done; nothing has changed. Add --execute"
    elif action == "rebuild":
        assert first.startswith(f"{topic}: rebuild is done, incarnation i2. ")
        assert "g, h have no offsets: set them with `memq group reset-offsets`" in first
    else:
        assert first == f"{topic}: restore is done; offsets and groups are as they were"
    assert bool(more) == (execute and adopted and topic == "t")
    assert not more or "nobody knows its options any more" in more[0]


def test_groups_that_are_not_known_are_told_of_as_well(said):
    """They have lost their offsets like those that are."""
    recover._advise(outcome("rebuild", incarnation="i2"), execute=True)
    assert "its groups have no offsets" in said[0]


def test_what_cannot_be_read_is_an_error_in_the_end(monkeypatch, tmp_path, capsys):
    """After all topics were shown, with how many objects and the first of them."""
    outcomes = [
        outcome("none"),
        outcome("restore", "u", damaged=["a: bad", "b: bad"]),
        outcome("none", "v", damaged=["c: bad"]),
    ]
    asked = []
    monkeypatch.setattr(
        "memq.broker.recover.recover",
        lambda *args, **named: asked.append((args, named)) or outcomes,
    )
    assert main(["recover", str(tmp_path), "--topic", "u", "--storage", "s3://x"]) == 1
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["TOPIC", "t", "u", "v"]
    assert err.splitlines()[-1] == (
        "memq: error: 3 objects cannot be read and left where it was: a: bad"
    )
    ((folder,), named), *_ = asked
    assert folder == tmp_path
    assert (named["topic"], named["storage"], named["execute"]) == ("u", "s3://x", False)
    outcomes[1:] = []
    assert main(["recover", str(tmp_path), "--execute"]) == 0
    assert asked[-1][1]["execute"] is True


@pytest.mark.parametrize(
    ("verdict", "code"), [("clean", 0), ("not clean", 1), ("partly judged", 3)]
)
def test_the_exit_code_of_an_audit(verdict, code):
    """What could not be judged is neither clean nor lost; 2 is a wrong command line."""
    assert exit_code(SimpleNamespace(verdict=verdict)) == code
