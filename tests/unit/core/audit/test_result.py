"""What an audit found: the verdict, what was not judged, and the JSON for other programs."""

from __future__ import annotations

import pytest

from memq.core.audit.render import unjudged
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

NAME = ProducerName(0, "p", 0)


@pytest.mark.parametrize("finding", ["lost", "damaged", "duplicated", "changed"])
def test_result_with_a_finding_is_not_clean(finding) -> None:
    """What breaks a promise makes the whole result unclean, whatever could not be judged."""
    producer = ProducerAudit(ProducerName(0, "p", 0))
    assert AuditResult("t", [producer]).verdict is Verdict.CLEAN
    getattr(producer, finding).append(SequenceRun(3, 3))
    assert AuditResult("t", [producer], open_reports=1).verdict is Verdict.UNCLEAN
    fine = ProducerAudit(NAME, recovered=[SequenceRun(1, 1)])
    assert AuditResult("t", [fine]).clean
    assert AuditResult("t", [fine], damage=["object gone"]).verdict is Verdict.UNCLEAN


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        (AuditResult("t", [], open_reports=2), "2 reports are not closed yet"),
        (
            AuditResult(
                "t",
                [ProducerAudit(NAME, expired=[SequenceRun(1, 2)], expired_records=5)],
                expired_reports=2,
            ),
            "2 reports name 5 LogMessages",
        ),
        (AuditResult("t", [], beyond=["out of reach"]), "out of reach"),
        (
            AuditResult("t", [ProducerAudit(NAME, unreported_messages=1, unreported_records=3)]),
            "3 LogMessages are stored but in no report",
        ),
        (AuditResult("t", [], consumers=[ConsumerAudit("g", 0)]), "no report of 'g'"),
        (
            AuditResult(
                "t",
                [],
                consumers=[
                    ConsumerAudit("g", 1, [ConsumedAudit(NAME, unreported=MessageCount(1, 3))])
                ],
            ),
            "g has committed 3 LogMessages without a report",
        ),
    ],
)
def test_what_is_not_judged_is_never_clean(result, sentence) -> None:
    """Where part of the window could not be judged, the verdict and a sentence say so."""
    assert result.verdict is Verdict.PARTLY
    assert not result.clean
    (line,) = unjudged(result)
    assert sentence in line


@pytest.mark.parametrize(
    ("finding", "verdict"),
    [
        ("missed", Verdict.UNCLEAN),
        ("mismatched", Verdict.UNCLEAN),
        ("unreported", Verdict.PARTLY),
        ("behind", Verdict.CLEAN),
    ],
)
def test_audit_is_clean_only_if_consumers_are(finding, verdict) -> None:
    """What a consumer has left out is a fault like a loss; lag is none."""
    found = ConsumedAudit(ProducerName(0, "p", 0), **{finding: MessageCount(messages=1, records=7)})
    consumer = ConsumerAudit("g", 1, [found])
    assert AuditResult("t", [], consumers=[consumer]).verdict is verdict
    assert consumer.total(finding) == MessageCount(1, 7)


def test_a_result_comes_back_from_its_json() -> None:
    """Another program reads exactly what the audit found, down to the sequences and offsets."""
    producer = ProducerAudit(ProducerName(1, "p", 2), lost=[SequenceRun(3, 5)], lost_records=2**40)
    missed = MessageCount(messages=1, records=7, parts=[LocatedRun(0, 4, 5, 6, 6)])
    consumer = ConsumerAudit("g", 1, [ConsumedAudit(producer.name, missed=missed)], ["differs"])
    result = AuditResult("t", [producer], ["object gone"], 1, 2, [consumer])
    assert decode_result(encode_result(result)) == result


@pytest.mark.parametrize("payload", [b"", b"{}", b"[1]", b'{"topic": "t", "producers": [{}]}'])
def test_what_is_no_result_is_refused(payload) -> None:
    """A file that another program wrote is a clear error, not a traceback."""
    with pytest.raises(CorruptDataError, match="not the result of an audit"):
        decode_result(payload)
