"""Objects are checked and printed without a broker."""

import json

import pytest

from memq.cli.main import main
from tests.unit.core.format.builders import joined, records, seal


@pytest.fixture
def sealed():
    """A Batch of two Messages."""
    return seal([records(10), records(5)])


@pytest.fixture
def path(tmp_path, sealed):
    """The object of that Batch."""
    path = tmp_path / "batch.arrows"
    path.write_bytes(joined(sealed))
    return path


def damage(path, position):
    """Change one byte of an object."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_damaged_object(path, sealed, capsys):
    """Each finding is printed with the object's place, and the command ends with 1; what does not
    hold is not printed as if it did.
    """
    for entry in sealed.entries:
        damage(path, entry.offset + entry.length - 9)

    assert main(["batch", "verify", path.as_uri()]) == 1

    captured = capsys.readouterr()
    for entry in sealed.entries:
        assert f"Message at byte {entry.offset}: it has CRC32C" in captured.out
    assert captured.out.count(path.as_uri()) == 2
    assert captured.err == "memq: error: damaged: 1 of 1 Batch\n"
    assert main(["batch", "cat", str(path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "memq: error: Message at byte" in captured.err


@pytest.mark.parametrize("command", ["verify", "cat"])
def test_object_that_is_not_there(tmp_path, capsys, command):
    """A missing object and a folder are named in one line, with no findings about nothing."""
    missing = tmp_path / "gone.arrows"
    assert main(["batch", command, str(missing)]) == 1
    assert capsys.readouterr() == (
        "",
        f"memq: error: there is no object {missing}; name one that `memq batch list TOPIC` shows\n",
    )
    said = "is a folder; name an object in it, or a topic for all of its Batches"
    for folder in (str(tmp_path), tmp_path.as_uri()):
        assert main(["batch", command, folder]) == 1
        assert capsys.readouterr() == ("", f"memq: error: {folder} {said}\n")


def test_range_of_an_object(path, capsys):
    """A range of offsets means nothing within one object."""
    assert main(["batch", "verify", str(path), "--range", "0:1-2"]) == 2

    assert "--range is for a topic" in capsys.readouterr().err


def test_cat(path, capsys):
    """Each LogMessage is a line that says where in the object it is."""
    assert main(["batch", "cat", str(path)]) == 0

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 15
    assert lines[10] == {
        "key": "key 0",
        "value": "value 0 ............",
        "headers": [["n", "0"]],
        "timestamp": "2023-11-14T22:13:20.000000Z",
        "write_partition": 3,
        "producer_id": "producer-1",
        "epoch": 2,
        "sequence": 1,
        "position": 0,
    }


def test_cat_messages(path, sealed, capsys):
    """The Messages are listed as the index has them."""
    assert main(["batch", "cat", str(path), "--messages", "-o", "json"]) == 0

    rows = json.loads(capsys.readouterr().out)
    assert [row["sequence"] for row in rows] == [0, 1]
    assert [row["position"] for row in rows] == [entry.offset for entry in sealed.entries]
    assert rows[0]["crc32c"] == f"{sealed.entries[0].crc32c:08x}"
