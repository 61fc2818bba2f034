"""Which Java is good enough for Spark, and the line that says so where there is none."""

import pytest

from memq.errors import ConfigError
from memq.runtime.java import check_java


@pytest.mark.parametrize(
    ("version", "major"),
    [("11.0.2", 11), ("1.8.0_392", 8), ("16", 16)]
    + [(each, None) for each in ("17.0.15", "21", "25-ea", "unheard of", "")],
)
def test_a_java_that_is_too_old_is_named(tmp_path, monkeypatch, version, major):
    """A later one, and one that does not say which it is, is for Spark to judge."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nexit 7\n")
    java.chmod(0o755)
    if version:
        (tmp_path / "release").write_text(f'IMPLEMENTOR="X"\nJAVA_VERSION="{version}"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if major is None:
        check_java()
        return

    with pytest.raises(ConfigError, match=f"bin/java is Java {major}. Spark needs Java 17 or"):
        check_java()


def test_java_is_missing(tmp_path, monkeypatch):
    """Where JAVA_HOME leads nowhere, or PATH has no java, that is what it says."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=f"no Java: JAVA_HOME = {tmp_path} has none. Spark needs"):
        check_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"no Java: no java is on PATH\. Spark needs"):
        check_java()
