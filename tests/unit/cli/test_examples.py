"""Examples: what there is to copy, and that a copy takes nothing away."""

import json
from pathlib import Path

import pytest

from memq.cli.examples import FOLDERS, ROOT
from memq.cli.main import main

CHECKOUT = Path(__file__).parents[3]


@pytest.fixture
def copy(capsys):
    """Copies; gives what was done by file, or the error when there is one."""

    def copy(*arguments, code=0):
        assert main(["examples", "copy", "-o", "json", *map(str, arguments)]) == code
        captured = capsys.readouterr()
        if code:
            return captured.err
        return {row["file"]: row["action"] for row in json.loads(captured.out)}

    return copy


def test_list(capsys):
    """The list has every file of the folders, each with what it says of itself."""
    assert main(["examples", "list", "-o", "json"]) == 0

    rows = json.loads(capsys.readouterr().out)
    assert CHECKOUT == ROOT
    assert {row["file"] for row in rows} == {
        str(path.relative_to(ROOT)) for name in FOLDERS for path in (ROOT / name).glob("*.*")
    }
    assert all(row["about"] for row in rows)


def test_what_is_there_stays(copy, tmp_path):
    """A file that differs stays as it is, and nothing else is copied, until --force is given."""
    mine = tmp_path / "dags" / "memq_ranges.py"
    mine.parent.mkdir()
    mine.write_text("mine")

    error = copy("dags", tmp_path, code=1)

    assert error == (
        f"memq: error: {mine} would be replaced; nothing was copied. Give --force to replace, or "
        "name another folder\n"
    )
    assert [path.name for path in mine.parent.iterdir()] == [mine.name]
    assert mine.read_text() == "mine"
    assert copy("dags", tmp_path, "--force")[str(mine)] == "copied"
    assert mine.read_bytes() == (ROOT / "dags" / mine.name).read_bytes()


@pytest.mark.parametrize(
    "source", ["dag", "dags/none.py", "../docs", "memq", "dags/../pyproject.toml"]
)
def test_only_what_is_listed(copy, tmp_path, source):
    """Nothing else of the package can be copied; the error says what can."""
    error = copy(source, tmp_path, code=2)

    assert f"there is no '{source}'; there are dags, " in error
    assert list(tmp_path.iterdir()) == []
