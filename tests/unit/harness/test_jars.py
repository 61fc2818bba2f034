"""Only the jars that are pinned are run."""

from __future__ import annotations

import hashlib

import pytest

from tests.harness.services.errors import JarError, ServiceUnavailableError
from tests.harness.services.jars import ARTIFACTS, PINS, S3PROXY, Jars, check, read_pins


def pins(**files):
    return {f"{name}.jar": hashlib.sha256(body).hexdigest() for name, body in files.items()}


def test_every_service_has_pins():
    """Each service that is fetched has its jars pinned, and nothing else is."""
    assert read_pins(PINS).keys() == {each.folder for each in ARTIFACTS}


@pytest.mark.parametrize("line", ["", "12  a/b.jar", f"{'0' * 64} a/b.jar", f"{'0' * 64}  b.jar"])
def test_a_line_that_is_no_pin_is_refused(line, tmp_path):
    """A pin list with a broken line is an error that shows the line."""
    path = tmp_path / "pins"
    path.write_text(f"# heading\n{'0' * 64}  a/a.jar\n{line}\n")
    with pytest.raises(JarError, match=f"{line!r} is not"):
        read_pins(path)


def test_the_pinned_jars_are_taken(tmp_path):
    """A folder with exactly the pinned jars passes."""
    (tmp_path / "a.jar").write_bytes(b"a")
    (tmp_path / "b.jar").write_bytes(b"b")
    check(tmp_path, pins(a=b"a", b=b"b"))


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
