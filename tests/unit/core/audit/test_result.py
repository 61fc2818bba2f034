"""What an audit found: the verdict, what was not judged, and what is read of it."""

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
    Verdict,
    decode_result,
    encode_result,
)
from memq.errors import CorruptDataError

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


# -- the verdict ----------------------------------------------------------------------------


def produced(*, open_reports=0, **findings):
    """A result with a producer and what was found about it."""
    return AuditResult("t", [ProducerAudit(NAME, **findings)], open_reports=open_reports)


def consumed(reports=1, **findings):
    """A result with a consumer and what was found about it."""
    found = ConsumedAudit(NAME, **findings)
    return AuditResult("t", [], consumers=[ConsumerAudit("g", reports, [found])])


RUN, COUNT = [SequenceRun(3, 3)], MessageCount(1, 3)


@pytest.mark.parametrize(
    ("result", "verdict"),
    [(produced(**{kind: RUN}), Verdict.UNCLEAN) for kind in ("lost", "damaged", "duplicated")]
    + [
        (produced(changed=RUN, open_reports=1), Verdict.UNCLEAN),
        (produced(recovered=RUN), Verdict.CLEAN),
        (produced(expired=RUN), Verdict.PARTLY),
        (AuditResult("t", [], damage=["object gone"]), Verdict.UNCLEAN),
        (consumed(missed=COUNT), Verdict.UNCLEAN),
        (consumed(mismatched=COUNT), Verdict.UNCLEAN),
        (consumed(behind=COUNT), Verdict.CLEAN),
    ],
)
def test_verdict_is_that_of_the_worst_finding(result, verdict) -> None:
    """What breaks a promise makes a result unclean, whatever was not judged; lag is no fault."""
    assert (result.verdict, result.clean) == (verdict, verdict is Verdict.CLEAN)


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        (AuditResult("t", [], open_reports=2), "2 reports are not closed yet"),
        (AuditResult("t", [], expired_reports=2), "2 reports name 0 LogMessages"),
        (AuditResult("t", [], beyond=["out of reach"]), "out of reach"),
        (
            produced(unreported_messages=1, unreported_records=3),
            "3 LogMessages are stored but in no report",
        ),
        (consumed(reports=0), "no report of 'g'"),
        (consumed(unreported=COUNT), "g has committed 3 LogMessages without"),
    ],
)
def test_what_is_not_judged_is_never_clean(result, sentence) -> None:
    """Where part of the window could not be judged, the verdict and a sentence say so."""
    assert (result.verdict, result.clean) == (Verdict.PARTLY, False)
    assert render.conclusion(result).startswith("PARTLY JUDGED")
    (line,) = render.unjudged(result)
    assert sentence in line


# -- in words -------------------------------------------------------------------------------


def test_a_result_in_words(result):
    """Counts are of producers, whatever their epochs; a sentence names who, what and how many."""
    result.producers.append(ProducerAudit(ProducerName(1, "p", 3), stored_records=5))
    result.producers.append(ProducerAudit(ProducerName(1, "q", 0), unreported_messages=1))
    assert render.totals_in_words(result) == [
        "2 producers: 1 partly judged, 1 not clean; LogMessages: 90 produced, 5 stored",
        "g: 1 producer: 1 not clean; LogMessages: 40 stored, 0 consumed, 10 behind",
    ]
    whose = "producer 'p' epoch 2 write partition 1"
    lines = render.faults_in_words(result, 5)
    assert lines == [
        f"lost: {whose} sequences 1-2,4 (30 LogMessages)",
        f"duplicated: {whose} sequences 5",
        f"missed by consumer 'g': {whose} sequences 6-7 (20 LogMessages)",
        "cannot be read: object gone",
        "consumer 'g': g differs",
    ]
    assert render.faults_in_words(result, 2) == [*lines[:2], "and 3 more, see the table"]
    assert render.conclusion(result) == (
        "NOT CLEAN: 1 object or report cannot be read; 30 LogMessages lost in 3 Messages; "
        "1 Message duplicated; 20 LogMessages missed by g in 2 Messages"
    )
    assert render.conclusion(AuditResult("t", [])) == "clean"


@pytest.mark.parametrize(
    ("ids", "shown"),
    [
        (["shop", "shop-7"], ["shop", "shop-7"]),
        (["012345678", "1123456789"], ["012345678", "11234567…"]),
        (["01234567890-xyz", "01234567899-xyz"], ["01234567890…", "01234567899…"]),
        (["01234567", "0123456789abcd"], ["01234567", "012345678…"]),
    ],
)
def test_short_ids_tell_producers_apart(ids, shown):
    """As few characters as name one producer of the result, at least eight; short ids are whole."""
    producers = [ProducerAudit(ProducerName(0, each, 0)) for each in ids]
    assert list(render.short_ids(AuditResult("t", producers)).values()) == shown


# -- for programs ---------------------------------------------------------------------------


def test_csv_has_the_rows(result):
    """One line for each row; columns that are not for it are empty."""
    producer, consumer = csv.DictReader(render.to_csv(result).splitlines())
    assert tuple(producer) == render.COLUMNS
    of_producer = {"consumer": "", "lost_records": "30", "missed_records": ""}
    assert producer | of_producer == producer
    assert producer["findings"] == "lost 1-2,4; duplicated 5; expired 7-8"
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


def test_summary_is_bounded(result):
    """An XCom holds the totals, and the first faults."""
    found = render.summary(result, 2)
    assert (found["lost_records"], found["produced_records"]) == (30, 90)
    assert [each["finding"] for each in found["findings"]] == ["lost", "doubled"]
    assert found["more_findings"] == 1
    assert found["consumers"]["g"]["missed_records"] == 20
    assert found["consumers"]["g"]["clean"] is False


def test_a_result_comes_back_from_its_json(result) -> None:
    """Another program reads exactly what the audit found, down to the sequences and offsets."""
    assert decode_result(encode_result(result)) == result


@pytest.mark.parametrize("payload", [b"", b"[1]", b'{"topic": "t", "producers": [{}]}'])
def test_what_is_no_result_is_refused(payload) -> None:
    """A file that another program wrote is a clear error, not a traceback."""
    with pytest.raises(CorruptDataError, match="not the result of an audit"):
        decode_result(payload)
