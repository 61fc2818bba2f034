"""Only the jars that are pinned are run."""

from __future__ import annotations

import hashlib

import pytest

from tests.harness.services.errors import JarError, ServiceUnavailableError
from tests.harness.services.jars import S3PROXY, Jars, check


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


def test_a_machine_without_java_says_so(tmp_path):
    """Without the command `java` the error names what is missing."""
    jars = Jars(tmp_path, java="no-such-java")
    with pytest.raises(ServiceUnavailableError, match="there is no command 'no-such-java'"):
        jars.get(S3PROXY)
