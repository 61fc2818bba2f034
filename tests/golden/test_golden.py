"""Today's code reads what earlier versions wrote, and writes what is in these files."""

import json
import tarfile

import pytest

from memq import AdminClient, Consumer, Producer
from memq.core.features import MAX_LEVEL
from memq.testing.broker import BrokerProcess
from tests.golden.data_dir import ARCHIVE, KEPT, READ, sent
from tests.golden.formats import FILES, formats, value_of, versions

FORMATS = formats()
KNOWN = [path for name in FORMATS for path in versions(name)]


def has_all(found, expected) -> bool:
    """Whether what is read has all that was read then; it may have more fields."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(
            name in found and has_all(found[name], value) for name, value in expected.items()
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(has_all, found, expected))
    return found == expected


@pytest.mark.parametrize("path", KNOWN, ids=lambda path: path.name)
def test_what_a_version_wrote_is_read(path):
    """Every field has the value that it had when the bytes were written."""
    expected = json.loads(path.with_name(f"{path.name}.json").read_text())
    assert has_all(value_of(FORMATS[path.stem].read, path.read_bytes()), expected)


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_written_is_kept(name):
    """Bytes that no file has are a new version of a format: `python -m tests.golden` adds them."""
    assert FORMATS[name].example in [path.read_bytes() for path in versions(name)]


def test_no_file_is_forgotten():
    """Each file is of a format that is read here."""
    found = {path for path in FILES.iterdir() if ".json" not in path.suffixes}
    assert found - set(KNOWN) == set(FILES.glob(ARCHIVE.format("*")))


ARCHIVES = sorted(FILES.glob(ARCHIVE.format("*")))


@pytest.mark.parametrize("path", ARCHIVES, ids=lambda path: path.name)
def test_a_data_directory_is_served(path, tmp_path):
    """All records, offsets of the group and deduplication are as an earlier broker left them."""
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    with BrokerProcess(tmp_path / "data") as process, AdminClient(process.address) as admin:
        assert read_all(process.address, "plain") == [b"v%d" % each for each in range(KEPT)]
        with Consumer(process.address, topic="typed", start="earliest") as consumer:
            words = []
            while len(words) < KEPT:
                words += consumer.poll(30).to_arrow()["word"].to_pylist()
        assert sorted(words) == sorted(f"w{each}" for each in range(KEPT))
        assert admin.committed("readers", "plain") == {0: READ}
        (lag,) = admin.lag("plain", "readers")
        assert lag.total.batches == KEPT - READ
        with Producer(process.address, topic="plain", producer_id="golden") as producer:
            again = producer.write(**sent(0))
            producer.flush()
        assert again.result().offset == 0  # the same Message, known by its name
        assert admin.status().brokers[0].level in range(1, MAX_LEVEL + 1)


def read_all(address: str, topic: str) -> list[bytes]:
    """Values of a topic."""
    found: list[bytes] = []
    with Consumer(address, topic=topic, start="earliest") as consumer:
        while len(found) < KEPT:
            batch = consumer.poll(30)
            assert batch is not None
            found += [each.value for each in batch]
    return found
