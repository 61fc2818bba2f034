"""Findings in words, as rows and as JSON: one wording, and the names that other programs read."""

from __future__ import annotations

import csv

import msgspec
import pytest

from memq.core.audit import render
from memq.core.audit.reports import ProducerName, SequenceRun
from memq.core.audit.result import (
    AuditResult,
    ConsumedAudit,
    ConsumerAudit,
    LocatedRun,
    MessageCount,
    ProducerAudit,
    encode_result,
)

NAME = ProducerName(1, "p", 2)


@pytest.fixture
def result():
    """Something of every kind is wrong."""
    producer = ProducerAudit(
        NAME,
        produced_messages=9,
        produced_records=90,
        lost=[SequenceRun(1, 2), SequenceRun(4, 4)],
        lost_records=30,
        duplicated=[SequenceRun(5, 5)],
        expired=[SequenceRun(7, 8)],
        expired_records=20,
    )
    audit = ConsumedAudit(
        NAME,
        stored=MessageCount(4, 40),
        missed=MessageCount(2, 20, [LocatedRun(0, 3, 5, 6, 7)]),
        unreported=MessageCount(1, 10, [LocatedRun(0, 6, 7, 8, 8)]),
        behind=MessageCount(1, 10),
    )
    consumer = ConsumerAudit("g", 3, [audit], mismatches=["g differs"])
    return AuditResult("t", [producer], damage=["object gone"], consumers=[consumer])


def test_last_line_counts_what_is_wrong(result):
    """Each finding is there once, with LogMessages where they are counted, and the consumer."""
    assert render.conclusion(result) == (
        "NOT CLEAN: 1 object or report cannot be read; 30 LogMessages lost in 3 Messages; "
        "1 Message duplicated; 20 LogMessages missed by g in 2 Messages"
    )
    assert render.conclusion(AuditResult("t", [])) == "clean"
    assert render.conclusion(AuditResult("t", [], open_reports=1)).startswith("PARTLY JUDGED")


def test_totals_count_producers_once(result):
    """A producer with several epochs is one, and as good as the worst of them."""
    result.producers.append(ProducerAudit(ProducerName(1, "p", 3), stored_records=5))
    result.producers.append(ProducerAudit(ProducerName(1, "q", 0), unreported_messages=1))
    result.producers.append(ProducerAudit(ProducerName(1, "r", 0)))
    assert render.totals_in_words(result) == [
        "3 producers: 1 clean, 1 partly judged, 1 not clean; LogMessages: 90 produced, 5 stored",
        "g: 1 producer: 1 not clean; LogMessages: 40 stored, 0 consumed, 10 behind",
    ]
    assert render.totals_in_words(AuditResult("t", [])) == []


@pytest.mark.parametrize(
    ("ids", "shown"),
    [
        (["0123456789abcdef"], ["01234567…"]),
        (["shop", "shop-7"], ["shop", "shop-7"]),
        (["0123456789"], ["01234567…"]),
        (["012345678"], ["012345678"]),
        (["0123456789ab-1", "0123456789ab-2"], ["0123456789ab-1", "0123456789ab-2"]),
        (["01234567890-xyz", "01234567899-xyz"], ["01234567890…", "01234567899…"]),
        (["01234567", "0123456789abcd"], ["01234567", "012345678…"]),
    ],
)
def test_short_ids_tell_producers_apart(ids, shown):
    """As few characters as name one producer of the result, at least eight; short ids are whole."""
    producers = [ProducerAudit(ProducerName(0, each, 0)) for each in ids]
    assert list(render.short_ids(AuditResult("t", producers)).values()) == shown


def test_lines_below_the_tables(result):
    """What cannot be read comes first, then what differs, lag, and what could not be judged."""
    assert render.notes(result) == [
        "cannot be read: object gone",
        "g differs",
        "g is 10 LogMessages behind.",
        "g has committed 10 LogMessages without a report of it: a member ended before it could.",
    ]
    assert render.notes(AuditResult("t", [])) == ["No report in this window could be judged."]


def test_faults_in_words_are_bounded(result):
    """A sentence names who, which sequences and how many; the last one counts what was left out."""
    whose = "producer 'p' epoch 2 write partition 1"
    lines = render.faults_in_words(result, 10)
    assert lines == [
        f"lost: {whose} sequences 1-2,4 (30 LogMessages)",
        f"duplicated: {whose} sequences 5",
        f"missed by consumer 'g': {whose} sequences 6-7 (20 LogMessages)",
        "cannot be read: object gone",
        "consumer 'g': g differs",
    ]
    assert render.faults_in_words(result, 2) == [*lines[:2], "and 3 more, see the table"]


def test_late_consumers_in_words(result):
    """Only those that were asked for, and that one has said nothing is told."""
    silent = ConsumerAudit("s", 0, [ConsumedAudit(NAME, behind=MessageCount(1, 5))])
    result.consumers.append(silent)
    assert render.late_in_words(result, ["g", "s", "x"]) == [
        "consumer 'g' has not come to 10 LogMessages",
        "consumer 's' has not come to 5 LogMessages: there is no report of it",
    ]
    assert render.late_in_words(result, []) == []


def test_rows_name_what_was_found(result):
    """Sequences, and for consumers the ranges of offsets as `memq consume --range` takes them."""
    producer, consumer = render.rows(result)
    assert (producer["consumer"], consumer["consumer"]) == (None, "g")
    assert producer["findings"] == "lost 1-2,4; duplicated 5; expired 7-8"
    assert consumer["findings"] == "missed 6-7 in 0:3-5; unreported 8 in 0:6-7"
    assert (producer["lost_records"], consumer["missed_records"]) == (30, 20)
    assert (producer["verdict"], producer["clean"]) == ("not clean", False)
    assert render.rows(result, 1)[0]["findings"].startswith("lost 1-2,1 more;")


def test_csv_has_the_rows(result):
    """One line for each row; columns that are not for it are empty."""
    producer, consumer = csv.DictReader(render.to_csv(result).splitlines())
    assert tuple(producer) == render.COLUMNS
    of_producer = {"consumer": "", "lost_records": "30", "missed_records": ""}
    assert producer | of_producer == producer
    of_consumer = {"consumer": "g", "produced_records": "", "clean": "False"}
    assert consumer | of_consumer == consumer
    assert consumer["findings"] == "missed 6-7 in 0:3-5; unreported 8 in 0:6-7"


def test_other_programs_read_the_names_that_there_have_always_been(result):
    """What is called duplicated here is `doubled` in every JSON."""
    stored = msgspec.json.decode(encode_result(result))
    assert stored["producers"][0]["doubled"] == [[5, 5]]
    told = render.to_json(result)
    assert told["producers"][0]["doubled"] == [(5, 5)]
    assert told["producers"][0].keys() == (stored["producers"][0].keys() - {"name"}) | {
        "write_partition", "producer_id", "epoch",
    }  # fmt: skip
    assert told["consumers"][0]["producers"][0]["missed"] == [
        {"partition": 0, "start": 3, "end": 5, "first": 6, "last": 7}
    ]
    findings = render.summary(result, 2)["findings"]
    assert [each["finding"] for each in findings] == ["lost", "doubled"]


def test_summary_is_bounded(result):
    """An XCom holds the totals, and the first faults."""
    found = render.summary(result, 1)
    assert (found["lost_records"], found["produced_records"]) == (30, 90)
    assert (found["more_findings"], len(found["findings"])) == (2, 1)
    assert found["consumers"]["g"]["missed_records"] == 20
    assert found["consumers"]["g"]["clean"] is False
