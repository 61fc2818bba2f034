"""The audit of a topic: whether each of the last hours is complete, and what each producer lost."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memq.client.audit.audit import audit_topic
from memq.core.units import HOUR_MS, MINUTE_MS, iso_ms
from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memq.console.visit import Visit
    from memq.core.audit.result import AuditResult, Finding

MAX_HOURS = 24
AUDIT_S = 6.0  # for all hours: a page has less than ten seconds
OPEN_MS = MINUTE_MS  # what is younger may be on its way
MAX_FINDINGS = 200  # that are shown
MAX_SENTENCES = 5  # of an hour: what is damaged or out of reach


@dataclass(frozen=True)
class Hour:
    """An hour; `verdict` is empty where it was not judged, and `problem` says why."""

    start: str
    verdict: str
    produced: int = 0
    stored: int = 0
    lost: int = 0
    problem: str = ""


@dataclass(frozen=True)
class Audit:
    """See above.

    Attributes:
        topic: the topic.
        hours: the newest first.
        asked: how many were asked for.
        findings: what is wrong, by producer and consumer, as many as are shown.
        left_out: how many are not.
    """

    topic: str
    hours: Sequence[Hour]
    asked: int
    findings: Sequence[tuple[str, Finding]]
    left_out: int


async def page(visit: Visit) -> Audit:
    """Audit hour by hour, the newest first, as far as the time for it goes."""
    asked = max(1, min(visit.number("hours", 1) or 1, MAX_HOURS))
    now_ms = visit.runtime.wall_ms() - OPEN_MS
    first_ms = now_ms // HOUR_MS * HOUR_MS
    hours: list[Hour] = []
    findings: list[tuple[str, Finding]] = []
    await visit.admin.describe_topic(visit.path["topic"])
    loop = asyncio.get_running_loop()
    until_s = loop.time() + AUDIT_S
    async with visit.heavy:
        for start_ms in range(first_ms, first_ms - asked * HOUR_MS, -HOUR_MS):
            start, end_ms = iso_ms(start_ms), min(start_ms + HOUR_MS, now_ms)
            try:
                async with asyncio.timeout_at(until_s):
                    result = await audit_topic(
                        visit.admin.cluster, visit.path["topic"], start_ms=start_ms, end_ms=end_ms
                    )
            except TimeoutError:
                why = f"not within {AUDIT_S:g} s; use `memq audit`"
                hours.append(Hour(start, "", problem=why))
            except MemqError as exc:
                hours.append(Hour(start, "", problem=str(exc)))
            else:
                hours.append(_hour(start, result))
                findings += [(start, each) for each in result.faults()]
    shown, left_out = findings[:MAX_FINDINGS], len(findings) - MAX_FINDINGS
    return Audit(visit.path["topic"], hours, asked, shown, max(0, left_out))


def _hour(start: str, result: AuditResult) -> Hour:
    produced, stored, lost = (
        result.total(f"{name}_records") for name in ("produced", "stored", "lost")
    )
    why = "; ".join([*result.damage, *result.beyond][:MAX_SENTENCES])
    return Hour(start, result.verdict, produced, stored, lost, why)
