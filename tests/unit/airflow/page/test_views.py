"""What pages say, from facts: states of ranges, what is missing, lag, audits, troubles."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_memq.page import queries
from airflow_provider_memq.page.queries import Brokers, Pipeline, Planned, Run, TableView
from airflow_provider_memq.page.views import TopicProgress, audit_of
from airflow_provider_memq.planning.ledger import PlanLedger
from airflow_provider_memq.planning.ranges import range_key
from memq.client.lag import Lag
from memq.core.ranges import Interval, OffsetRange, union
from memq.core.units import HOUR_MS, iso_ms
from memq.errors import StorageError

NOW = datetime(2026, 1, 2, 12, 30, tzinfo=UTC)
LIFE = "a" * 16
THIS_HOUR_MS = round(NOW.timestamp() * 1000) // HOUR_MS * HOUR_MS


def key(start, end):
    return range_key(OffsetRange(0, start, end, LIFE))


def plans(*cuts, minutes_ago=60, skipped=(), **states):
    """One plan of partition 0, cut there; runs as `r0_2="failed"`, or "done"."""
    made = PlanLedger(
        topic="clicks",
        topic_id=LIFE,
        origins={0: 0},
        ends={0: cuts[-1]},
        cuts={0: list(cuts)},
        skipped=[{"partition": 0, "start": start, "end": end} for start, end in skipped],
    )
    states = {key(*map(int, name[1:].split("_"))): state for name, state in states.items()}
    runs = {
        name: [Run("process", "run", state.replace("done", "success"), NOW)]
        for name, state in states.items()
    }
    done = {name for name, state in states.items() if state == "done"}
    at = NOW - timedelta(minutes=minutes_ago)
    pipeline = Pipeline(None, "plan", ["process"], done=[1])
    return Planned(pipeline, made, at, dict.fromkeys(made.ranges, at), runs, done)


def table(*held):
    snapshots = {OffsetRange(0, start, end, LIFE): {"snapshot_id": start} for start, end in held}
    return TableView("lake", {0: union(Interval(*each) for each in held)}, snapshots)


def brokers(end, **facts):
    return Brokers({0: 0}, {0: end}, **facts)


def progress(planned, *tables, asked=None):
    return TopicProgress(planned, asked or Brokers(), tables, [], NOW)


# -- ranges ---------------------------------------------------------------------------------

MARKED = "its run succeeded, and no task has said that it was processed"
FAILED, NO_RUN = "its run failed", "planned, and without a run"
BOTH, MOVED_ON = [table((0, 2))], brokers(4, stored={0: 4})
FACTS = {
    "running": (plans(0, 2, r0_2="running"), [], None, ["running"], []),
    "failed": (plans(0, 2, r0_2="failed"), [], None, ["failed"], [(0, 2, FAILED)]),
    "failed, and in the table": (
        plans(0, 2, r0_2="failed"), BOTH, None, ["in table"], [(0, 2, FAILED)]),
    "failed, and passed over": (
        plans(0, 2, 4, r0_2="failed", r2_4="done"), [], MOVED_ON,
        ["processed", "failed"], [(0, 2, f"{FAILED}, and the group was moved past it")]),
    "marked as success by a person": (
        plans(0, 2, 4, r0_2="success", r2_4="done"), [], None,
        ["processed", "not confirmed"], [(0, 2, MARKED)]),
    "marked, and in the table": (
        plans(0, 2, 4, r0_2="success", r2_4="done"), BOTH, None,
        ["processed", "in table"], [(2, 4, "processed, and not in table lake")]),
    "a run may still come": (plans(0, 2, minutes_ago=4), [], None, ["waiting"], []),
    "no run comes any more": (plans(0, 2, minutes_ago=5), [], None, ["no run"], [(0, 2, NO_RUN)]),
    "the group alone has passed it": (plans(0, 4), [], MOVED_ON, ["passed"], []),
    "passed, and not in the table": (
        plans(0, 4), BOTH, MOVED_ON, ["passed"], [(0, 4, "passed, and not in table lake")]),
    "every kind of gap": (
        plans(5, 6, 8, 10, skipped=[(0, 5)], r5_6="failed", r6_8="failed", r8_10="running"),
        [], brokers(12), ["running", "failed", "failed"],
        [(5, 6, FAILED), (6, 8, FAILED), (10, 12, "published, and not planned yet"),
         (0, 5, "removed by retention before it was planned")]),
}  # fmt: skip
"""Plans, tables, brokers; states of ranges, the newest first; what is missing."""


@pytest.mark.parametrize("name", FACTS)
def test_how_far_ranges_are_and_what_is_missing(name):
    """Runs, tasks, group and table each say what they know, and nothing is called done by guess."""
    planned, tables, asked, states, gaps = FACTS[name]
    page = progress(planned, *tables, asked=asked).page()

    assert [each["state"] for each in page["ranges"]] == states
    assert [(each["start"], each["end"], each["why"]) for each in page["missing"]] == gaps
    assert page["removed"] == (5 if name == "every kind of gap" else 0)


def test_without_an_asset_of_processed_ranges_the_run_says_how_far_a_range_is():
    """Its success is no promise, and no fault."""
    planned = plans(0, 2, r0_2="success")
    planned = planned._replace(pipeline=planned.pipeline._replace(done=[]))

    row = progress(planned, table()).row(OffsetRange(0, 0, 2, LIFE))
    assert (row["state"], row["why"], row["snapshots"]) == ("success", "", [])


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=12))
def test_a_range_is_in_the_table_or_missing_and_never_both(sizes):
    """Whatever was put in: the stretches in the table and those named make up what is processed."""
    cuts, held = [0], []
    for size, is_in in sizes:
        cuts.append(cuts[-1] + size)
        held += [(cuts[-2], cuts[-1])] if is_in else []
    planned = plans(*cuts)
    planned = planned._replace(done=set(map(range_key, planned.planned_at)))

    found = progress(planned, table(*held)).page()["missing"]
    gaps = [Interval(each["start"], each["end"]) for each in found]
    assert union(sorted([*gaps, *(Interval(*each) for each in held)])) == [Interval(0, cuts[-1])]
    assert sum(end - start for start, end in [*gaps, *held]) == cuts[-1]


# -- read partitions ------------------------------------------------------------------------


def test_processed_stops_at_the_first_gap():
    """A range that failed holds it back; before the plans of a page the group says how far."""
    planned = plans(0, 2, 4, 6, r0_2="done", r2_4="failed", r4_6="done")
    asked = brokers(9, lag={0: Lag(7, 70, 700, 90.0)})
    tables = [table((0, 1), (2, 6)), table()]
    (row,) = progress(planned, *tables, asked=asked).partitions()
    assert [*row.values()] == [0, 0, 9, 6, 2, "0, 2 to 5; none", 7, 70, "0:01:30"]
    (row,) = progress(planned).partitions()  # without brokers
    assert (row["processed"], row["planned"], row["published"], row["lag"]) == (2, 6, None, None)

    assert plans(10, 12, 14, r10_12="done").processed({}) == {0: 12}
    assert plans(10, 12, 14, r10_12="done").processed({0: 7}) == {0: 7}


# -- audits ---------------------------------------------------------------------------------


def judged(back, verdict, *, hours=1, made_up=()):
    """A result about the window that began so many hours before this one."""
    start_ms = THIS_HOUR_MS - back * HOUR_MS
    window = {"start": iso_ms(start_ms), "end": iso_ms(start_ms + round(hours * HOUR_MS))}
    result = {**window, "verdict": verdict, "table": f"/{back}.csv", "made_up": list(made_up)}
    return Run("audit", f"{verdict} {back}", "success", NOW), result


def audited(*results, consumed=()):
    """The audit by results, the newest first."""
    return audit_of({"consumed": consumed, "stored": results}, NOW)


def words_of(view):
    return "|".join(each["stored"]["words"] for each in view["hours"]).rstrip("|")


CLEAN, LOST = judged(2, "clean"), judged(2, "not clean")
WIDE = judged(3, "not clean", hours=2.5)
PART = "(part of the hour)"
VERDICTS = {
    "each by its run": ([judged(1, "not clean"), judged(3, "clean")], "not clean||clean", 1),
    "the newest counts": ([LOST, CLEAN], "|not clean", 1),
    "until it is audited again": ([CLEAN, LOST], "|clean", 0),
    "by a wider window": ([judged(3, "clean", hours=3), LOST], "clean|clean|clean", 0),
    "what could not be judged counts last": (
        [judged(3, "partly judged", hours=2.5), CLEAN, judged(3, "not clean")],
        f"partly judged {PART}|clean|not clean", 1),
    "a wider window with a fault": (
        [WIDE, judged(1, "clean"), CLEAN], "not clean|not clean|not clean", 1),
    "the hours of a wider window one by one": (
        [CLEAN, judged(3, "clean"), WIDE], f"not clean {PART}|clean|clean", 1),
    "made up for": (
        [judged(2, "clean", hours=0.5, made_up=[judged(5, "not clean")[1]])],
        f"|clean {PART}|||not clean", 1),
    "none is not audited, and what is none is passed over": (
        [(CLEAN[0], {**CLEAN[1], **each})
         for each in ({"start": 5}, {"end": "0001-01-01"}, {"verdict": "what"}, {"made_up": [5]})],
        "", 0),
}  # fmt: skip


@pytest.mark.parametrize("name", VERDICTS)
def test_each_hour_has_its_verdict(name):
    """The newest on each part of it, of these the worst; and a loss is named until it is mended."""
    results, words, lost = VERDICTS[name]
    view = audited(*results)

    assert (words_of(view).replace("not audited", ""), len(view["lost"])) == (words, lost)


def test_an_hour_that_nobody_audited_is_named():
    """Those before the first audit are none."""
    assert words_of(audited(CLEAN, judged(4, "clean"))) == "not audited|clean|not audited|clean"
    assert words_of(audited(judged(720, "clean"))) == "|".join(["not audited"] * 24)


def test_what_was_found_names_its_run_and_table():
    """The window that was last found clean is none that a later audit found something in."""
    view = audited(LOST, CLEAN, judged(5, "clean"), consumed=[judged(3, "not clean")])

    stored, consumed = view["hours"][1]["stored"], view["hours"][2]["consumed"]
    assert (stored["run"].run_id, stored["table"]) == ("not clean 2", "/2.csv")
    assert (consumed["words"], view["last_clean"]["run"].run_id) == ("not clean", "clean 5")
    assert [each["what"] for each in view["lost"]] == ["consumed", "stored"]
    assert view["last_clean"]["window"] == "2026-01-02T07:00:00.000Z to 2026-01-02T08:00:00.000Z"


# -- brokers and tables ---------------------------------------------------------------------


def test_what_hangs_is_named_and_does_not_pile_up(monkeypatch):
    """Nothing is waited for longer than the budget; when threads are free again, all is asked."""
    monkeypatch.setattr(queries, "BUDGET_S", 0.0)
    go, begun = threading.Event(), []

    def hang():
        begun.append("hangs")
        go.wait(60)

    while len(begun) < queries.MAX_THREADS:
        assert queries.ask({"table a": hang}) == ({}, ["table a: no answer within 0 s"])
    queries.ask({"table a": lambda: begun.append("nobody waits for it any more")})
    go.set()
    monkeypatch.setattr(queries, "BUDGET_S", 60.0)
    assert queries.ask({"table a": lambda: 7}) == ({"table a": 7}, [])
    assert set(begun) == {"hangs"}


def test_no_secret_is_shown():
    """Credentials in the errors of others are masked where their form tells them."""
    for text in (
        "postgresql://user:hunter2@db/x is away",
        "s3.secret-access-key=hunter2, region=x",
        '{"token": "hunter2"}',
        "password: hunter2",
    ):
        assert "hunter2" not in queries.in_a_line(StorageError(text))
    assert queries.in_a_line("a\n  b\n" + "c" * 9999) == "a b " + "c" * 496
