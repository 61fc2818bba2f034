"""What the audit of a topic has come to, hour by hour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_memq.values import parse_time_ms
from memq.core.audit.result import Verdict, worst
from memq.core.ranges import Interval, difference, intersection, union
from memq.core.units import HOUR_MS, iso_ms
from memq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from airflow_provider_memq.plugins.queries import Audits, Run

HOURS = 24
MAX_LOST = 10  # windows that are named at the top of a page
GONE = "judged, result no longer kept"
NOT_AUDITED = "not audited"
UNKNOWN = ""  # of an hour before anybody audited


@dataclass(frozen=True)
class Finding:
    """What an audit came to.

    Attributes:
        words: a verdict, or that nobody judged; or the window that was judged.
        run: DAG run that judged; None where there is none.
        table: path of its findings; empty where there is none.
    """

    words: str
    run: Run | None = None
    table: str = ""


@dataclass(frozen=True)
class Hour:
    """One hour.

    Attributes:
        start: ISO time.
        stored: what was produced against what is stored.
        consumed: what is stored against what was consumed.
    """

    start: str
    stored: Finding
    consumed: Finding


@dataclass(frozen=True)
class Audit:
    """The audit of a topic.

    Attributes:
        hours: the last 24, the newest first.
        lost: windows of these hours that were found not clean, and not clean since; newest first.
        last_clean: the window that ends last of those that were found clean; None where none is.
    """

    hours: list[Hour]
    lost: list[Finding]
    last_clean: Finding | None


class _Judged(NamedTuple):
    window: Interval
    verdict: Verdict
    table: str
    run: Run

    @property
    def window_words(self) -> str:
        return f"{iso_ms(self.window.start)} to {iso_ms(self.window.end)}"

    def found(self, words: str) -> Finding:
        return Finding(words, self.run, self.table)


def audit_of(audits: Audits, now: datetime) -> Audit:
    """Tell the verdicts of the last hours."""
    stored: list[_Judged] = []
    consumed: list[_Judged] = []
    for each in sorted(audits.results, key=lambda each: each.run.at, reverse=True):
        (consumed if each.consumed else stored).extend(_judged(each.value, each.run))
    now_ms = int(now.timestamp() * 1000)
    this_hour_ms = now_ms // HOUR_MS * HOUR_MS
    hours = [
        Interval(this_hour_ms - back * HOUR_MS, this_hour_ms - (back - 1) * HOUR_MS)
        for back in range(1, HOURS + 1)
    ]
    lost = [
        each.found(f"{what}: not clean {each.window_words}")
        for what, judged in (("consumed", consumed), ("stored", stored))
        for each in _still_unclean(judged)
        if intersection([each.window], Interval(hours[-1].start, now_ms))
    ]
    last = max(_still_clean(stored), key=lambda each: each.window.end, default=None)
    return Audit(
        [
            Hour(
                iso_ms(hour.start),
                _verdict(hour, stored) or Finding(_unjudged(hour, audits.audited)),
                _verdict(hour, consumed) or Finding(UNKNOWN),
            )
            for hour in hours
        ],
        lost[:MAX_LOST],
        last.found(last.window_words) if last else None,
    )


def _judged(result: dict[str, Any], run: Run) -> Iterator[_Judged]:
    """Read the windows that a run has judged; what is none is passed over: anybody may push one."""
    made_up = result.get("made_up")
    for each in (result, *(made_up if isinstance(made_up, list) else ())):
        try:
            window = Interval(*(parse_time_ms(name, each[name]) for name in ("start", "end")))
            verdict, table = Verdict(each["verdict"]), str(each.get("table") or "")
        except (AttributeError, KeyError, TypeError, ValueError, ConfigError):
            continue
        yield _Judged(window, verdict, table, run)


def _verdict(hour: Interval, judged: Iterable[_Judged]) -> Finding | None:
    """Judge an hour: the worst of the newest judgements of its parts; None without any.

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
    return reason.found(f"{verdict} (part of the hour)" if left else verdict)


def _tells_of(hour: Interval, each: _Judged) -> bool:
    if each.verdict is Verdict.UNCLEAN:
        return not difference([each.window], [hour])
    is_around = not difference([hour], [each.window])
    return each.window == hour or (each.verdict is Verdict.CLEAN and is_around)


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


def _unjudged(hour: Interval, audited: list[Interval]) -> str:
    """Say why nobody has judged an hour, by the windows that are known to be audited."""
    if not audited or hour.end <= audited[0].start:
        return UNKNOWN
    since = Interval(max(hour.start, audited[0].start), hour.end)
    if difference([since], audited):
        return NOT_AUDITED
    return GONE if since == hour else UNKNOWN
