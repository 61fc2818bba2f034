"""Which arguments a Spark program takes for its own."""

from __future__ import annotations

import click
import pytest

from memq.spark.app import own_arguments, run

OWN = '["--mode", "failfast", "a \\"b\\" c", ""]'


def test_on_glue_they_are_one_among_others():
    """What Glue adds, before and after, is not the program's; its own arrive byte by byte."""
    given = ["--JOB_ID", "j", "true", "--memq_arguments", OWN, "--JOB_NAME", "n"]

    assert own_arguments(given) == ["--mode", "failfast", 'a "b" c', ""]
    assert own_arguments(["--mode", "failfast"]) == ["--mode", "failfast"]


@pytest.mark.parametrize("text", ["x", "{}", "[1]"])
def test_what_is_no_list_is_wrong_usage(text, capsys):
    """It is named in one line, as any other wrong argument."""
    command = click.command("program")(lambda: None)

    assert run(command, ["--memq_arguments", text]) == 2
    assert capsys.readouterr().err.startswith("program: error: --memq_arguments: must be a JSON")
