"""What the audit of a topic has come to, hour by hour."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from memq.core.audit.result import Verdict, worst
from memq.core.ranges import Interval, difference, intersection, union
from memq.core.units import HOUR_MS, iso_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from airflow_provider_memq.plugins.facts import Audits, Run

HOURS = 24
MAX_LOST = 10  # windows that are named at the top of a page
GONE = "judged, result no longer kept"
NOT_AUDITED = "not audited"
UNKNOWN = ""  # of an hour before anybody audited


@dataclass(frozen=True, kw_only=True)
class VerdictView:
    """What an audit came to.

    Attributes:
        verdict: "clean", "partly judged" or "not clean"; or that nobody judged.
        run: address of the DAG run that judged; empty where there is none.
        table: path of its findings; empty where there is none.
    """

    verdict: str
    run: str = ""
    table: str = ""


@dataclass(frozen=True, kw_only=True)
class HourView:
    """One hour.

    Attributes:
        start: ISO time.
        end: likewise.
        stored: what was produced against what is stored.
        consumed: what is stored against what was consumed.
    """

    start: str
    end: str
    stored: VerdictView
    consumed: VerdictView


@dataclass(frozen=True, kw_only=True)
class AuditView:
    """The audit of a topic.

    Attributes:
        lost: windows of these hours that were found not clean, and not clean since; newest first.
        hours: the last 24, the newest first.
        last_clean: the window that ends last of those that were found clean: ISO times; empty where
            none is known.
        last_clean_run: address of the DAG run that found it.
    """

    hours: list[HourView]
    lost: list[VerdictView]
    last_clean: str = ""
    last_clean_run: str = ""


class _Judged(NamedTuple):
    window: Interval
    verdict: Verdict
    table: str
    run: Run


def audit_view(audits: Audits, now: datetime, address: Callable[[Run], str]) -> AuditView:
    """The verdicts of the last hours.

    Args:
        audits: what is known.
        now: the time.
        address: of a DAG run.
    """
    judged: dict[bool, list[_Judged]] = {True: [], False: []}
    for task in audits.tasks:
        for run in task.runs:
            judged[task.consumed] += _judged(run)
    for each in judged.values():
        each.sort(key=lambda found: found.run.at, reverse=True)
    this_hour_ms = int(now.timestamp() * 1000) // HOUR_MS * HOUR_MS
    hours = []
    for back in range(1, HOURS + 1):
        hour = Interval(this_hour_ms - back * HOUR_MS, this_hour_ms - (back - 1) * HOUR_MS)
        stored = _verdict(hour, judged[False], address)
        if stored is None:
            stored = VerdictView(verdict=_unjudged(hour, audits.audited))
        consumed = _verdict(hour, judged[True], address) or VerdictView(verdict=UNKNOWN)
        hours.append(
            HourView(
                start=iso_ms(hour.start), end=iso_ms(hour.end), stored=stored, consumed=consumed
            )
        )
    day = Interval(this_hour_ms - HOURS * HOUR_MS, int(now.timestamp() * 1000))
    lost = [
        _shown(each, f"{'consumed' if consumed else 'stored'}: not clean {_words(each)}", address)
        for consumed, found in judged.items()
        for each in _still_unclean(found)
        if intersection([each.window], day)
    ]
    last = max(_still_clean(judged[False]), key=lambda each: each.window.end, default=None)
    if last is None:
        return AuditView(hours=hours, lost=lost[:MAX_LOST])
    return AuditView(
        hours=hours,
        lost=lost[:MAX_LOST],
        last_clean=_words(last),
        last_clean_run=address(last.run),
    )


def _judged(run: Run) -> Iterable[_Judged]:
    """The windows that a run has judged, by what its task returned."""
    result = run.result or {}
    made_up = result.get("made_up")
    for each in (result, *(made_up if isinstance(made_up, list) else ())):
        found = _of(each, run)
        if found is not None:
            yield found


def _of(plain: Mapping[str, Any], run: Run) -> _Judged | None:
    """A window in a result; None where it is none, for anybody may push an XCom."""
    try:
        start, end = (datetime.fromisoformat(plain[name]) for name in ("start", "end"))
        window = Interval(*(round(at / timedelta(milliseconds=1)) for at in _since(start, end)))
        return _Judged(window, Verdict(plain["verdict"]), str(plain.get("table") or ""), run)
    except (KeyError, TypeError, ValueError):
        return None


def _since(*times: datetime) -> list[timedelta]:
    return [each - datetime.fromisoformat("1970-01-01T00:00:00+00:00") for each in times]


def _verdict(
    hour: Interval, judged: Iterable[_Judged], address: Callable[[Run], str]
) -> VerdictView | None:
    """What an hour came to: the worst of the newest judgements of its parts; None without any.

    Those of the very hour go first, faults within it, and windows around it that are clean. What
    else an audit on demand has found counts where they say nothing: it may be of another hour.
    """
    left = [hour]
    found = []
    for each in sorted(judged, key=lambda each: not _tells_of(hour, each)):
        if any(intersection([each.window], part) for part in left):
            found.append(each)
            left = difference(left, [each.window])
    if not found:
        return None
    verdict = worst(each.verdict for each in found)
    reason = next(each for each in found if each.verdict is verdict)
    part = " (part of the hour)" if left else ""
    return _shown(reason, f"{verdict}{part}", address)


def _shown(each: _Judged, words: str, address: Callable[[Run], str]) -> VerdictView:
    return VerdictView(verdict=words, run=address(each.run), table=each.table)


def _words(each: _Judged) -> str:
    return f"{iso_ms(each.window.start)} to {iso_ms(each.window.end)}"


def _tells_of(hour: Interval, each: _Judged) -> bool:
    if each.verdict is Verdict.UNCLEAN:
        return not difference([each.window], [hour])
    return each.window == hour or (
        each.verdict is Verdict.CLEAN and not difference([hour], [each.window])
    )


def _still_unclean(judged: Iterable[_Judged]) -> Iterator[_Judged]:
    """Windows that were found not clean, and of which nothing else was found since."""
    since: list[Interval] = []
    for each in judged:
        if each.verdict is Verdict.UNCLEAN and difference([each.window], since):
            yield each
        if each.verdict is not Verdict.PARTLY:
            since = union(sorted([*since, each.window]))


def _still_clean(judged: Iterable[_Judged]) -> Iterator[_Judged]:
    """Windows that were found clean, and of which nothing was found worse since; newest first."""
    worse: list[Interval] = []
    for each in judged:
        if each.verdict is not Verdict.CLEAN:
            worse.append(each.window)
        elif not intersection(union(sorted(worse)), each.window):
            yield each


def _unjudged(hour: Interval, audited: Iterable[Interval]) -> str:
    known = union(sorted(audited))
    if not known or hour.end <= known[0].start:
        return UNKNOWN
    since = Interval(max(hour.start, known[0].start), hour.end)
    if difference([since], known):
        return NOT_AUDITED
    return GONE if since == hour else UNKNOWN
