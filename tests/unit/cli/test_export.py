"""What `memq export` takes for a file or a folder, asks for, and says when it is interrupted."""

import pytest

from memq.cli.export import _target
from memq.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "form", "expected"),
    [
        ("x.csv", None, (True, "csv")),
        ("x.CSV", "csv", (True, "csv")),
        ("a.b/x.parquet", None, (True, "parquet")),
        ("there.csv", None, (True, "csv")),  # which is refused later: it exists
        ("new", None, (False, "parquet")),
        ("folder", "csv", (False, "csv")),
        ("folder.csv", None, (False, "parquet")),
        ("folder.csv", "arrow", (False, "arrow")),
        ("v1.2", None, (False, "parquet")),
        ("x.csv", "arrow", "is to be a file of csv, not arrow"),
        ("there.csv", "jsonl", "is to be a file of csv"),
        ("there", None, "looks like a file"),
        ("v1.3", "csv", "looks like a file"),
        ("-", None, "looks like a file"),
    ],
)
def test_a_file_or_a_folder(tmp_path, monkeypatch, name, form, expected):
    """By the name, but what is there is what it is; the format is that of the name."""
    monkeypatch.chdir(tmp_path)
    for folder in ("folder", "folder.csv", "v1.2"):
        (tmp_path / folder).mkdir()
    for file in ("there", "there.csv"):
        (tmp_path / file).touch()
    target = tmp_path / name
    if isinstance(expected, tuple):
        assert _target(target, form) == expected
        return
    with pytest.raises(ConfigError, match=expected):
        _target(target, form)
