"""The pins name packages and versions, and nothing of the machine that made them."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
PIN = re.compile(r"(?P<name>[a-z0-9-]+)==[0-9a-z.]+( ; .+)?")


def normalized(requirement: str) -> str:
    """The name in a requirement, as pins spell it."""
    return re.split(r"[\[<>=!~; ]", requirement)[0].lower().replace("_", "-")


def pins() -> list[str]:
    """The lines that are not comments."""
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    return [line for line in lines if not line.lstrip().startswith("#")]


def test_lines_are_pins():
    """Every line is a name and a version: no index, no host, no path, no option."""
    assert [line for line in pins() if PIN.fullmatch(line) is None] == []


def test_everything_asked_for_is_pinned():
    """What pyproject.toml asks for is pinned; `make requirements` mends it when it is not."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = project["project"]["dependencies"] + project["dependency-groups"]["dev"]

    pinned = {line.partition("==")[0] for line in pins()}

    assert {normalized(requirement) for requirement in wanted} - pinned == set()
