"""Only the jars that are pinned are run."""

import hashlib

import pytest

from tests.harness.services.errors import JarError
from tests.harness.services.jars import check


def pins(**files):
    return {f"{name}.jar": hashlib.sha256(body).hexdigest() for name, body in files.items()}


@pytest.mark.parametrize(
    ("pinned", "problem"),
    [
        ({"a": b"other"}, "a.jar has SHA-256"),
        ({"a": b"a", "b": b"b"}, "b.jar is missing"),
        ({}, "a.jar is not pinned"),
    ],
)
def test_other_jars_are_refused(pinned, problem, tmp_path):
    """A jar that is missing, not pinned or has other bytes is an error that names it."""
    (tmp_path / "a.jar").write_bytes(b"a")
    with pytest.raises(JarError, match=problem):
        check(tmp_path, pins(**pinned))
