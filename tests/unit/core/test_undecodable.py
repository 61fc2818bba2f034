"""Files, notifications and records of which a byte is damaged: a typed error, whichever byte."""

import contextlib
import logging
import re
from itertools import islice
from pathlib import Path

import pytest

from memq.broker.catalog import Catalog
from memq.core.audit.reports import ProducerName, decode_reports, encode_report
from memq.core.audit.result import AuditResult, ProducerAudit, decode_result, encode_result
from memq.core.clock import SavedTimes
from memq.core.governor.nodes import BROKERS, BrokerNode
from memq.core.governor.topics import new_topic
from memq.core.manifest import decode_manifest, encode_manifest
from memq.core.notification import decode_notification, encode_notification
from memq.core.queue import Holding
from memq.core.topic import TopicConfig
from memq.errors import CorruptDataError
from memq.queue.embedded.folders import TopicFile, TopicFolders
from memq.queue.kafka.client import KafkaRecord
from memq.queue.kafka.state import KafkaState, held_record
from memq.tables.ledger import decode_ledger
from tests.unit.core.audit.test_reports import CONSUMED, REPORT
from tests.unit.core.test_manifest import MANIFEST
from tests.unit.reading.batches import Sent, notify, records, seal

DEEP = b"[" * 100_000
NOTIFICATION = encode_notification(notify(seal(Sent("p", 0, records(b"v")))))


def damaged(whole):
    """What may become of some JSON: a byte that no UTF-8 has, at each place, and deep nesting."""
    yield from (whole[:at] + b"\xff" + whole[at + 1 :] for at in range(len(whole)))
    yield from (whole[: at + 1] + DEEP for at, byte in enumerate(whole) if byte in b":[")
    yield DEEP


DECODERS = {
    "notification": (decode_notification, NOTIFICATION),
    "report of a producer": (decode_reports, encode_report(REPORT)),
    "report of a consumer": (decode_reports, encode_report(CONSUMED)),
    "report of several partitions": (
        decode_reports,
        encode_report(REPORT)[:-1] + b',"also":[[1,0,9,50,500,7,[],0]]}',
    ),
    "result of an audit": (
        decode_result,
        encode_result(AuditResult("t", [ProducerAudit(ProducerName(0, "p", 0))])),
    ),
    "manifest of a range": (decode_manifest, encode_manifest(MANIFEST)),
    "ledger of a table": (decode_ledger, b'{"topics":{"t":{"i":{"0":[]}}},"version":1}'),
    "node of a broker": (
        lambda data: BROKERS.decode("b", data),
        BROKERS.encode(BrokerNode(id="b", address="h:1", zone="z")),
    ),
}


@pytest.mark.parametrize("name", DECODERS)
def test_what_is_damaged_is_whole_or_a_typed_error(name):
    """A decoder gives something, or says that the data is corrupt."""
    decode, whole = DECODERS[name]
    refused = 0
    for each in damaged(whole):
        try:
            decode(each)
        except CorruptDataError:
            refused += 1
    assert refused > 10


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("notification", b'"records":1'),
        ("notification", b'["p",0,0,0,1'),
        ("report of several partitions", b'"also":[[1'),
        ("manifest of a range", b'"bytes": 123456'),
    ],
)
def test_a_number_that_fits_nowhere_is_refused(name, number):
    """JSON has integers of any size; msgpack and Arrow, where they go next, do not."""
    decode, whole = DECODERS[name]
    decode(whole)
    assert number in whole
    with pytest.raises(CorruptDataError, match="Expected `int` <="):
        decode(whole.replace(number, number + b"0" * 30))


def test_an_error_of_decoding_quotes_a_bounded_part():
    """It stands in logs, and what it quotes may be as long as the file."""
    long = b"x" * 1_000_000
    for content in (b'{"%s":1}' % long, b'{"left_out":[{"reason":"%s"}]}' % long):
        with pytest.raises(CorruptDataError) as caught:
            decode_manifest(content)
        assert len(str(caught.value)) < 1_000


def test_files_that_are_damaged_are_named(tmp_path):
    """Of a queue's topic, group, members and times, and of a catalog; they stop nothing else."""
    folders = TopicFolders(tmp_path)
    folders.load()
    folders.make("t", TopicFile(partitions=1, page_bytes=1 << 20, index_page_items=128))
    folders.show("t")
    folders.store_offsets("t", "g", {0: 1})
    folders.store_holdings("t", "g", {"m": Holding(1_000, [0])})
    folders.store_times(SavedTimes(5, 7))
    catalog = Catalog(tmp_path / "catalog")
    for name in ("a", "t"):
        config = TopicConfig.create(name)
        catalog.save(new_topic(config, (), now_ms=1, topic_id="0" * 16, request_id=""))
    reads = {
        "topics/t/topic.json": folders.load,
        "topics/t/groups/g.json": lambda: folders.offsets("t", "g"),
        "topics/t/members/g.json": lambda: folders.holdings("t"),
        "times.json": folders.times,
        "catalog/t.json": lambda: Catalog(tmp_path / "catalog").names().index("a"),
    }
    for name, read in reads.items():
        path = tmp_path / name
        whole = path.read_bytes()
        for each in islice(damaged(whole), 0, None, 1 + 8 * name.startswith("catalog")):
            path.write_bytes(each)
            with contextlib.suppress(CorruptDataError):
                read()
        path.write_bytes(whole)
    assert folders.times() == SavedTimes(5, 7)


def test_a_record_of_the_state_that_is_damaged_changes_nothing(caplog):
    """Brokers pass over it, with a line in the log, and read on."""
    caplog.set_level(logging.CRITICAL)
    state = KafkaState()
    record = held_record("t", "g", {"m": Holding(1_000, [0])})
    for key in damaged(record.key):
        state.read(KafkaRecord(0, 0, record.value, key))
    for value in damaged(record.value):
        state.read(KafkaRecord(0, 0, value, record.key))
    state.read(KafkaRecord(0, 0, record.value, record.key))
    assert state.held("t") == {"g": {"m": Holding(1_000, [0])}}


def test_errors_of_decoding_are_named_together():
    """Who catches one kind of what decoding raises catches all (`memq.core.decoding`)."""
    found = [
        f"{path}: {line}"
        for package in ("memq", "airflow_provider_memq", "pyspark_memq")
        for path in (Path(__file__).parents[3] / package).rglob("*.py")
        for line in path.read_text().splitlines()
        if re.match(r"\s+except .*msgspec\.(?!ValidationError)", line)
    ]
    assert found == []
