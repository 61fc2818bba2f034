"""What the page of a topic says, from facts: states, what is missing, lag, audits, troubles."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_memq.planning.ledger import Ledger, StoredPlan
from airflow_provider_memq.planning.ranges import range_key
from airflow_provider_memq.planning.topics import TopicState
from airflow_provider_memq.plugins import outside, pages
from airflow_provider_memq.plugins.hours import audit_of
from airflow_provider_memq.plugins.outside import (
    MAX_RUNNING,
    Brokers,
    Snapshot,
    TableState,
    in_a_line,
    look_at,
)
from airflow_provider_memq.plugins.progress import Progress
from airflow_provider_memq.plugins.queries import AuditResult, Audits, Pipeline, Planned, Run
from memq.client.lag import Lag
from memq.core.ranges import Interval, OffsetRange, union
from memq.core.units import iso_ms
from memq.errors import ConfigError, StorageError
from tests.advice import follows

NOW = datetime(2026, 1, 2, 12, 30, tzinfo=UTC)
LIFE = "a" * 16
PIPELINE = Pipeline("clicks", "ranges", "plan", ("process",), done=("processed",))
HOUR_MS = 3_600_000
THIS_HOUR_MS = round(NOW.timestamp() * 1000) // HOUR_MS * HOUR_MS


def key(start, end, partition=0):
    return range_key(OffsetRange(partition, start, end, LIFE))


def plans(*cuts, ago=timedelta(hours=1), **ledger):
    """One plan of partition 0, cut there."""
    made = Ledger(
        topic="clicks",
        incarnation=LIFE,
        origins={0: 0},
        ends={0: cuts[-1]},
        cuts={0: list(cuts)},
        **ledger,
    )
    return Planned(made, [StoredPlan(NOW - ago, made)])


def runs(**states):
    """Runs of ranges, as `r0_2="failed"`."""
    found = {}
    for name, state in states.items():
        start, end = map(int, name.removeprefix("r").split("_"))
        found[key(start, end)] = [Run("process", f"run {start}", state, NOW)]
    return found


def ran(planned, **states):
    """Plans with runs as `runs`, of which those that succeeded have said so."""
    found = runs(**states)
    done = {name for name, (run,) in found.items() if run.state == "success"}
    return planned._replace(runs=found, done=planned.done | done)


def table(*held, name="lake.clicks"):
    snapshots = {
        OffsetRange(0, start, end, LIFE): Snapshot(name, str(2**62 + start), "", 10, "job")
        for start, end in held
    }
    return TableState(name, {0: union(Interval(*each) for each in held)}, snapshots)


def brokers(end, *, start=0, stored=None, incarnation=LIFE, lag=None):
    state = TopicState("clicks", incarnation, {0: start}, {0: end}, 0)
    return Brokers(state, stored or {}, {0: lag or Lag()})


def progress(planned, tables=(), asked=None, **pipeline):
    return Progress(PIPELINE._replace(**pipeline), planned, asked, tables, NOW)


# -- ranges ---------------------------------------------------------------------------------

SUCCEEDED = "its run succeeded, and no task has said that it was processed"
NO_RUN, FAILED = "planned, and without a run", "its run failed"
NOT_IN, REMOVED = "processed, and not in table lake.clicks", "removed by retention before it was"
ONE, TWO = plans(0, 2), plans(0, 2, 4)
SECOND_DONE = TWO._replace(done=frozenset([key(2, 4)]))
MARKED = SECOND_DONE._replace(runs=runs(r0_2="success"))
FAILED_THEN_DONE = ran(TWO, r0_2="failed", r2_4="success")
OTHERS = {key(0, 2): [Run("other", "r", "success", NOW)]}
HIDDEN, CLEANED = {"hidden_dags": 1}, {"all_have_runs": NOW}
EVERY_GAP = ran(
    plans(5, 6, 8, 9, 10, skipped=[{"partition": 0, "start": 0, "end": 5}]),
    r5_6="failed",
    r6_8="failed",
    r8_9="success",
    r9_10="running",
)

FACTS = {
    "running": (ran(ONE, r0_2="running"), {}, ["running"], []),
    "failed": (ran(ONE, r0_2="failed"), {}, ["failed"], [(0, 2, FAILED)]),
    "marked as success by a person": (
        MARKED,
        {},
        ["processed", "not confirmed"],
        [(0, 2, SUCCEEDED)],
    ),
    "marked, and in the table": (
        MARKED,
        {"tables": [table((0, 2))]},
        ["processed", "in table"],
        [(2, 4, NOT_IN)],
    ),
    "its run failed after its task had said so": (
        ran(ONE, r0_2="failed")._replace(done=frozenset([key(0, 2)])),
        {},
        ["processed"],
        [],
    ),
    "no asset says what is processed": (
        ONE._replace(runs=runs(r0_2="success")),
        {"done": ()},
        ["success"],
        [],
    ),
    "only another DAG ran it": (
        ONE._replace(others=OTHERS),
        {},
        ["no run"],
        [(0, 2, NO_RUN)],
    ),
    "failed, and passed over": (
        FAILED_THEN_DONE,
        {"asked": brokers(4, stored={0: 4})},
        ["processed", "failed"],
        [(0, 2, f"{FAILED}, and the group was moved past it")],
    ),
    "runs that the user may not see": (
        ONE,
        {"asked": brokers(2, stored={0: 0}), **HIDDEN},
        ["unknown"],
        [],
    ),
    "a run may still come": (plans(0, 2, ago=timedelta(minutes=1)), {}, ["waiting"], []),
    "no run comes any more": (TWO, {}, ["no run"] * 2, [(0, 4, NO_RUN)]),
    "its run was cleaned away": (ONE, {"asked": brokers(2), **CLEANED}, ["unknown"], []),
    "cleaned away, passed, and not in the table": (
        TWO,
        {"asked": brokers(4, stored={0: 2}), "tables": [table((2, 4))], **CLEANED},
        ["in table", "passed"],
        [(0, 2, "passed, and not in table lake.clicks")],
    ),
    "the group alone has passed it": (
        SECOND_DONE,
        {"asked": brokers(4, stored={0: 4}), **HIDDEN, **CLEANED},
        ["processed", "passed"],
        [],
    ),
    "every kind of gap": (
        EVERY_GAP,
        {"asked": brokers(12), "tables": [table()]},
        ["running", "processed", "failed", "failed"],
        [
            (5, 8, FAILED),
            (8, 9, NOT_IN),
            (10, 12, "published, and not planned yet"),
            (0, 5, f"{REMOVED} planned"),
        ],
    ),
}
"""Plans with their runs, what else is seen; states of ranges, the newest first; what is missing."""


@pytest.mark.parametrize(("planned", "seen", "states", "gaps"), FACTS.values(), ids=FACTS)
def test_how_far_ranges_are_and_what_is_missing(planned, seen, states, gaps):
    """Runs, tasks, group and table each say what they know, and nothing is called done by guess."""
    found = progress(planned, **seen)

    assert [each.state for each in found.newest(9)] == states
    assert [(each.start, each.end, each.why) for each in found.missing()] == gaps


def test_a_range_names_its_runs_and_snapshots():
    """Those of other DAGs apart; the snapshot until it has expired; and where a gap begins."""
    planned = ran(ONE, r0_2="failed")._replace(others=OTHERS)
    expired = table((0, 2))._replace(snapshots={})

    (shown,) = progress(planned, [table((0, 2))]).newest(9)
    assert [each.run_id for each in (*shown.runs, *shown.others)] == ["run 0", "r"]
    assert [each.snapshot_id for each in shown.snapshots] == [str(2**62)]
    assert progress(planned, [expired]).newest(9)[0].state == "in table"
    assert [each.key for each in progress(EVERY_GAP, [], brokers(12)).missing()] == [
        key(5, 6), "", "",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="soon"):
        progress(ONE, missed_after="soon")


@pytest.mark.parametrize(
    ("asked", "pipeline", "told"),
    [
        (brokers(9, stored={0: 2}), {}, None),
        (brokers(9, stored={0: 7}), {}, "planned up to 2, and offset 7 is committed"),
        (None, {"hidden_dags": 1}, "1 DAG that you may not read: runs of ranges are missing here"),
        (brokers(9, incarnation="b" * 16), {}, f"it is of incarnation {'b' * 16}, and {LIFE}"),
    ],
)
def test_what_the_page_cannot_know_is_told(monkeypatch, asked, pipeline, told):
    """A restored database of Airflow, runs that are hidden, and a topic that was recreated."""
    monkeypatch.setattr(pages, "look_outside", lambda *_: (asked, []))
    notes = []
    pages._progress(PIPELINE._replace(**pipeline), ONE, notes, NOW)

    assert len(notes) == (told is not None)
    assert (told or "") in "".join(notes)


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=12))
def test_a_range_is_in_the_table_or_missing_and_never_both(sizes):
    """Whatever was put in: the stretches in the table and those named make up what is processed."""
    cuts, held = [0], []
    for size, is_in in sizes:
        cuts.append(cuts[-1] + size)
        held += [(cuts[-2], cuts[-1])] if is_in else []
    planned = plans(*cuts)
    planned = planned._replace(done=frozenset(map(range_key, planned.planned_at)))

    found = progress(planned, [table(*held)]).missing()
    gaps = [Interval(each.start, each.end) for each in found]
    assert union(sorted([*gaps, *(Interval(*each) for each in held)])) == [Interval(0, cuts[-1])]
    assert sum(end - start for start, end in [*gaps, *held]) == cuts[-1]


# -- read partitions ------------------------------------------------------------------------


def test_processed_stops_at_the_first_gap():
    """A range that failed holds it back; before the plans of a page the group says how far."""
    planned = ran(plans(0, 2, 4, 6), r0_2="success", r2_4="failed", r4_6="success")
    (row,) = progress(planned, [], brokers(9, lag=Lag(7, 70, 700, 90.0))).partitions()
    assert (row.processed, row.planned, row.published) == (2, 6, 9)
    assert (row.lag_batches, row.lag_records, row.lag) == (7, 70, "0:01:30")

    (row,) = progress(planned).partitions()  # without brokers
    assert (row.processed, row.planned, row.published, row.lag_batches) == (2, 6, None, None)

    older = ran(plans(10, 12, 14)._replace(older=True), r10_12="success")
    assert older.processed({}) == {0: 12}
    assert progress(older, [], brokers(20, stored={0: 7})).partitions()[0].processed == 7


# -- audits ---------------------------------------------------------------------------------


def audit_run(back, verdict, *, hours=1, made_up=(), name="audit", at=NOW):
    """A run that judged the window that began so many hours before this one."""
    start_ms = THIS_HOUR_MS - back * HOUR_MS
    window = {"start": iso_ms(start_ms), "end": iso_ms(start_ms + round(hours * HOUR_MS))}
    result = {**window, "verdict": verdict, "table": f"/{back}.csv", "made_up": list(made_up)}
    return AuditResult(Run("audit", f"{name} {back}", "success", at), False, result)


def audited(*results, record=(), consumed=()):
    results = [*results, *(each._replace(consumed=True) for each in consumed)]
    return audit_of(Audits(results, list(record)), NOW)


def hours_of(*back):
    """Intervals of hours that were audited."""
    starts = [THIS_HOUR_MS - each * HOUR_MS for each in back]
    return [Interval(start, start + HOUR_MS) for start in starts]


LATE = NOW + timedelta(minutes=1)
KEPT = "judged, result no longer kept"
CLEAN, LOST = audit_run(2, "clean"), audit_run(2, "not clean")
VERDICTS = {
    "each by its run": ([audit_run(1, "not clean"), audit_run(3, "clean")], "not clean||clean"),
    "the newest counts": ([CLEAN, audit_run(2, "partly judged", name="first")], "|clean"),
    "what was found in it stays": ([CLEAN, audit_run(2, "not clean", at=LATE)], "|not clean"),
    "until it is audited again": ([LOST, audit_run(2, "clean", at=LATE)], "|clean"),
    "by a wider window": ([LOST, audit_run(3, "clean", hours=3, at=LATE)], "clean|clean|clean"),
    "a wider window that is not judged": (
        [audit_run(3, "clean"), CLEAN, audit_run(3, "partly judged", hours=2.5, at=LATE)],
        "partly judged (part of the hour)|clean|clean",
    ),
    "a wider window with a fault": (
        [audit_run(3, "clean"), CLEAN, audit_run(3, "not clean", hours=2.5, at=LATE)],
        "not clean (part of the hour)|clean|clean",
    ),
    "a part that is not judged": ([CLEAN, audit_run(2, "partly judged", hours=0.5)], "|clean"),
    "a part with a fault": ([CLEAN, audit_run(2, "not clean", hours=0.5, at=LATE)], "|not clean"),
    "made up for": (
        [audit_run(2, "clean", hours=0.5, made_up=[audit_run(5, "not clean").value])],
        "|clean (part of the hour)|||not clean",
    ),
}


@pytest.mark.parametrize(("results", "words"), VERDICTS.values(), ids=VERDICTS)
def test_each_hour_has_its_verdict(results, words):
    """A fault within an hour is the hour's own; one of a window that is wider may be elsewhere."""
    view = audited(*results)

    assert "|".join(each.stored.words for each in view.hours).rstrip("|") == words


def test_an_hour_that_nobody_audited_is_named():
    """It is told apart from one whose result is gone, and from those before the first audit."""
    view = audited(record=hours_of(4, 2))
    long_ago = audited(record=hours_of(720))

    assert [each.stored.words for each in view.hours[:5]] == [
        "not audited", KEPT, "not audited", KEPT, "",
    ]  # fmt: skip
    assert {each.stored.words for each in long_ago.hours} == {"not audited"}
    view = audited(LOST, audit_run(5, "clean"), consumed=[audit_run(3, "clean")])
    assert (view.hours[1].stored.run.run_id, view.hours[1].stored.table) == ("audit 2", "/2.csv")
    assert (view.hours[2].consumed.words, view.last_clean.run.run_id) == ("clean", "audit 5")


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"start": 5, "end": [], "verdict": "clean"},
        {"start": "x", "made_up": None},
        {"start": "0001-01-01", "end": "0001-01-02", "verdict": "clean"},
        {"start": "0001-01-01T00:00:00+14:00", "end": "9999-12-31T23:59:59Z", "verdict": "what"},
        {"made_up": 5},
        {"made_up": {"start": "x"}},
        {"made_up": [5, "x"]},
    ],
)
def test_other_results_are_passed_over(result):
    """What is no result of an audit makes no verdict, and no error."""
    view = audited(AuditResult(Run("audit", "r", "success", NOW), False, result))

    assert {each.stored.words for each in view.hours} == {""}


# -- looks outside --------------------------------------------------------------------------


@follows("looks at it have not ended: try again later")
def test_looks_that_hang_do_not_pile_up(monkeypatch):
    """None is waited for; beyond a number others at the same thing are refused until some end."""
    monkeypatch.setattr(outside, "BUDGET_S", 0.0)
    go, notes = threading.Event(), []
    for _ in range(MAX_RUNNING + 1):
        look_at({"table a": lambda: go.wait(60)}, notes)

    words = f"table a: not asked, for {MAX_RUNNING} looks at it have not ended: try again later"
    assert (notes[0], notes[-1]) == ("table a: no answer within 0 s", words)
    go.set()
    for each in threading.enumerate():
        if each.name == "memq-page":
            each.join(60)
    monkeypatch.setattr(outside, "BUDGET_S", 60.0)
    assert look_at({"table a": lambda: 7}, notes) == {"table a": 7}


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://user:hunter2@db/x is away",
        "s3.secret-access-key=hunter2, region=x",
        '{"token": "hunter2"}',
        "password: hunter2",
    ],
)
def test_no_secret_is_shown(text):
    """Credentials in the errors of others are masked where their form tells them."""
    assert "hunter2" not in in_a_line(StorageError(text))
    assert in_a_line("a\n  b\n" + "c" * 9999) == "a b " + "c" * 496
