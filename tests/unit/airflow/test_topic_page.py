"""What the page of a topic says, from facts: states, what is missing, lag, audits, troubles."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta

import pytest
from fastapi.encoders import jsonable_encoder
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_memq.ledger import Ledger, StoredPlan
from airflow_provider_memq.plugins import outside, pages, routes
from airflow_provider_memq.plugins.hours import audit_of
from airflow_provider_memq.plugins.outside import (
    MAX_RUNNING,
    Brokers,
    Snapshot,
    TableState,
    in_a_line,
    look_at,
)
from airflow_provider_memq.plugins.pages import TopicPage
from airflow_provider_memq.plugins.progress import Progress
from airflow_provider_memq.plugins.queries import AuditResult, Audits, Pipeline, Planned, Run
from airflow_provider_memq.ranges import range_key
from airflow_provider_memq.topics import TopicState
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


def missing(*arguments, **pipeline):
    found = progress(*arguments, **pipeline).missing()
    return [(each.start, each.end, each.why) for each in found]


def looked(monkeypatch, planned, asked, tables=(), **pipeline):
    """The progress with what the page notes of it, when that is what is seen outside."""
    monkeypatch.setattr(pages, "look_outside", lambda *_: (asked, list(tables)))
    notes = []
    return pages._progress(PIPELINE._replace(**pipeline), planned, notes, NOW), notes


def html(**fields):
    """The page of a topic."""
    page = TopicPage(**{"topic": "clicks", "at": NOW, "notes": [], "audit": None, **fields})
    return routes._html("topic.html", page=page, asset="", query="")


# -- ranges ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ("queued", "queued"),
        ("running", "running"),
        ("failed", "failed"),
        ("success", "not confirmed"),
    ],
)
def test_a_range_is_as_far_as_its_run(state, shown):
    """The state of a range is that of its run; that of one that succeeded is not its own word."""
    planned = plans(0, 2)._replace(runs=runs(r0_2=state))

    (found,) = progress(planned).newest(10)

    assert (found.state, found.runs[0].run_id) == (shown, "run 0")


def test_a_range_is_processed_when_its_task_said_so():
    """A run that failed after the task that processes, at the commit, has processed its range."""
    planned = plans(0, 2)._replace(runs=runs(r0_2="failed"), done=frozenset([key(0, 2)]))

    assert progress(planned).newest(10)[0].state == "processed"


def test_a_run_that_was_marked_has_processed_nothing():
    """A person can mark a run as success, and a group can be moved: neither puts a row anywhere."""
    planned = plans(0, 2, 4)._replace(runs=runs(r0_2="success"), done=frozenset([key(2, 4)]))
    why = "its run succeeded, and no task has said that it was processed"

    assert missing(planned) == [(0, 2, why)]
    assert missing(planned, [], brokers(4, stored={0: 4})) == [
        (0, 2, f"{why}, and the group was moved past it")
    ]
    assert planned.processed({}) == {0: 0}
    assert progress(planned, [table((0, 2))]).newest(9)[1].state == "in table"


def test_where_no_task_says_what_it_processed_runs_are_shown_as_they_are():
    """A DAG without an asset for that has its runs alone."""
    planned = plans(0, 2)._replace(runs=runs(r0_2="success"))

    found = progress(planned, done=())

    assert (found.newest(9)[0].state, found.missing()) == ("success", [])


def test_runs_of_another_dag_do_not_say_how_far_a_range_is():
    """They are shown beside those of the DAG that processes, and change nothing."""
    planned = plans(0, 2)._replace(others={key(0, 2): [Run("other", "r", "success", NOW)]})

    (shown,) = progress(planned).newest(9)
    assert (shown.state, shown.runs, [each.dag_id for each in shown.others]) == (
        "no run", [], ["other"],
    )  # fmt: skip
    assert missing(planned) == [(0, 2, "planned, and without a run")]
    assert missing(planned._replace(runs=runs(r0_2="failed"))) == [(0, 2, "its run failed")]


def test_what_is_processed_beyond_the_plans_is_told(monkeypatch):
    """A restored database of Airflow is behind: nothing is missing then, as far as it knows."""
    assert looked(monkeypatch, plans(0, 2), brokers(9, stored={0: 2}))[1] == []

    (note,) = looked(monkeypatch, plans(0, 2), brokers(9, stored={0: 7}))[1]

    assert "partition 0 is planned up to 2, and offset 7 is committed" in note


def test_a_range_that_failed_and_was_passed_over_is_missing():
    """That its group was moved past it has processed nothing."""
    planned = ran(plans(0, 2, 4), r0_2="failed", r2_4="success")
    asked = brokers(4, stored={0: 4})

    assert [each.state for each in progress(planned, [], asked).newest(9)] == [
        "processed", "failed",
    ]  # fmt: skip
    assert missing(planned, [], asked) == [
        (0, 2, "its run failed, and the group was moved past it")
    ]
    assert missing(planned, [], brokers(4)) == [(0, 2, "its run failed")]


def test_a_range_that_failed_is_missing_although_the_table_has_it():
    """A gate refuses rows that are in the table already; a commit after it makes the range done."""
    planned = ran(plans(0, 2, 4), r0_2="failed", r2_4="success")
    held = [table((0, 4))]

    assert [each.state for each in progress(planned, held).newest(9)] == ["in table"] * 2
    assert missing(planned, held) == [(0, 2, "its run failed")]
    assert missing(planned._replace(done=frozenset([key(0, 2)])), held) == []


def test_runs_that_a_user_may_not_see_are_not_missing(monkeypatch):
    """Nothing is said about the runs of a range where there may be some."""
    for hidden, state, notes in (
        (0, "no run", []),
        (1, "unknown", ["1 DAG that you may not read: runs of ranges are missing here"]),
    ):
        found, told = looked(monkeypatch, plans(0, 2), None, hidden_dags=hidden)
        assert (found.newest(9)[0].state, told) == (state, notes)

    hidden = progress(plans(0, 2), [], brokers(2, stored={0: 0}), hidden_dags=1)
    assert hidden.missing() == []


@pytest.mark.parametrize(("missed_after", "state"), [("", "no run"), ("2h", "waiting")])
def test_a_range_waits_for_its_run_as_long_as_the_planner_does(missed_after, state):
    """Its page calls a range missing when the planner would emit it again, and no sooner."""
    found = progress(plans(0, 2), missed_after=missed_after)

    assert found.newest(1)[0].state == state
    with pytest.raises(ConfigError, match="soon"):
        progress(plans(0, 2), missed_after="soon")


def test_a_range_without_a_run_waits_and_then_is_missing():
    """For some minutes a run may still come; then there is none, and the page says so."""
    early = plans(0, 2, ago=timedelta(minutes=1))
    assert progress(early).newest(10)[0].state == "waiting"
    assert missing(early) == []

    late = plans(0, 2, 4)
    assert progress(late).newest(10)[0].state == "no run"
    assert missing(late) == [(0, 4, "planned, and without a run")]


def test_runs_that_were_cleaned_away_are_not_missing():
    """What had its run before Airflow's database was cleaned is unknown, and not without a run."""
    for asked in (None, brokers(2), brokers(2, stored={1: 0})):
        found = progress(plans(0, 2), [], asked, all_have_runs=NOW)
        assert (found.newest(10)[0].state, found.missing()) == ("unknown", [])


def test_a_range_without_its_run_is_missing_where_the_group_has_not_passed_it():
    """The group's offset says what no run does; a range that was just planned has some time."""
    asked, why = brokers(4, stored={0: 2}), "no run of it is kept, and the group has not passed it"
    planned = plans(0, 2, 4)

    assert missing(planned, [], asked, all_have_runs=NOW) == [(2, 4, why)]
    assert missing(planned, [table((2, 4))], asked, all_have_runs=NOW) == [
        (0, 2, "passed, and not in table lake.clicks")
    ]
    early = plans(0, 2, 4, ago=timedelta(minutes=1))
    assert missing(early, [], asked, all_have_runs=NOW) == []


@pytest.mark.parametrize("hidden", [0, 1])
def test_what_the_group_alone_has_passed_is_not_called_processed(hidden):
    """It may have been moved past a range that failed, the run of which is gone or hidden."""
    planned = plans(0, 2, 4)._replace(done=frozenset([key(2, 4)]))
    asked = brokers(4, stored={0: 4})

    found = progress(planned, [], asked, hidden_dags=hidden, all_have_runs=NOW)

    assert [each.state for each in found.newest(9)] == ["processed", "passed"]
    assert found.missing() == []


@pytest.mark.parametrize("ranges", [[(0, 2)], [(2, 4)]])
def test_the_word_for_what_the_group_has_passed_is_explained(ranges):
    """A page that has it says what it means, and others do not."""
    planned = plans(0, 2, 4)._replace(done=frozenset(key(*each) for each in ranges))
    found = progress(planned, [], brokers(4, stored={0: 2})).newest(9)

    text = html(incarnation=LIFE, ranges=found, ranges_count=2)

    assert ("Passed: the group is past it" in text) == (ranges == [(2, 4)])


def test_a_range_is_in_the_table_by_the_ledger_of_the_table():
    """Whatever became of its run; the snapshot is named until it has expired."""
    planned = ran(plans(0, 2, 4), r0_2="failed", r2_4="success")
    expired = table((0, 2))._replace(snapshots={})

    second, first = progress(planned, [table((0, 2))]).newest(10)
    assert (first.state, first.snapshots[0].snapshot_id) == ("in table", str(2**62))
    assert (second.state, second.snapshots) == ("processed", [])
    assert progress(planned, [expired]).newest(10)[1].state == "in table"


def test_a_range_of_which_a_part_is_in_the_table_is_missing_there():
    """It is in only with all its offsets."""
    planned = plans(0, 4)._replace(done=frozenset([key(0, 4)]))

    assert progress(planned, [table((0, 2))]).newest(10)[0].state == "processed"
    assert missing(planned, [table((0, 2))]) == [(0, 4, "processed, and not in table lake.clicks")]


@pytest.mark.parametrize(
    ("shown", "count", "since", "words"),
    [
        (3, 3, None, ""),
        (3, 7, None, "These are the newest 3 of 7; the form finds others by an offset."),
        (3, 7, NOW, "newest 3 of 7 that were planned since 2026-01-02T12:30:00+00:00; the form"),
    ],
)
def test_the_newest_ranges_are_shown_and_the_others_counted(shown, count, since, words):
    """The newest first; whoever wants another one looks for it by an offset."""
    found = progress(plans(*range(8))).newest(shown)

    text = html(incarnation=LIFE, ranges=found, ranges_count=count, since=since)

    assert [each.start for each in found] == [6, 5, 4]
    assert words in text
    assert ("These are" in text) == bool(words)


# -- what is missing ------------------------------------------------------------------------


def test_what_is_missing_is_named_with_its_reason():
    """Each kind of gap, merged where ranges meet, with the page of its first range."""
    planned = ran(
        plans(5, 6, 8, 9, 10, skipped=[{"partition": 0, "start": 0, "end": 5}]),
        r5_6="failed",
        r6_8="failed",
        r8_9="success",
        r9_10="running",
    )

    assert missing(planned, [table()], brokers(12)) == [
        (5, 8, "its run failed"),
        (8, 9, "processed, and not in table lake.clicks"),
        (10, 12, "published, and not planned yet"),
        (0, 5, "removed by retention before it was planned"),
    ]
    assert [each.key for each in progress(planned, [], brokers(12)).missing()] == [
        key(5, 6), "", "",
    ]  # fmt: skip


def test_old_gaps_hide_nothing():
    """What was removed long ago stays in the ledger, and comes after what can still be mended."""
    gaps = [{"partition": 0, "start": 10 * n, "end": 10 * n + 1} for n in range(60)]
    planned = plans(700, 702, skipped=gaps)._replace(runs=runs(r700_702="failed"))

    found = [why for _, _, why in missing(planned, [], brokers(704))]

    assert found[:2] == ["its run failed", "published, and not planned yet"]
    assert set(found[2:]) == {"removed by retention before it was planned"}


def test_nothing_is_called_missing_of_another_topic(monkeypatch):
    """Of a topic that was recreated, the offsets of the new one say nothing about the old one."""
    planned = ran(plans(0, 2), r0_2="success")

    found, (note,) = looked(monkeypatch, planned, brokers(9, incarnation="b" * 16, stored={0: 9}))

    assert (found.missing(), found.partitions()[0].published) == ([], None)
    assert f"deleted and recreated: it is of incarnation {'b' * 16}, and {LIFE}" in note


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=12))
def test_a_range_is_in_the_table_or_missing_and_never_both(sizes):
    """Whatever was put in: the stretches in the table and those named make up what is processed."""
    cuts, held = [0], []
    for size, is_in in sizes:
        cuts.append(cuts[-1] + size)
        held += [(cuts[-2], cuts[-1])] if is_in else []
    planned = plans(*cuts)
    planned = planned._replace(done=frozenset(map(range_key, planned.planned_at)))

    gaps = [Interval(*each[:2]) for each in missing(planned, [table(*held)])]
    assert union(sorted([*gaps, *(Interval(*each) for each in held)])) == [Interval(0, cuts[-1])]
    assert sum(end - start for start, end in [*gaps, *held]) == cuts[-1]


# -- read partitions ------------------------------------------------------------------------


def test_processed_stops_at_the_first_gap():
    """A range that failed holds back what is processed, however many after it are done."""
    planned = ran(plans(0, 2, 4, 6), r0_2="success", r2_4="failed", r4_6="success")

    (row,) = progress(planned, [], brokers(9, lag=Lag(7, 70, 700, 90.0))).partitions()
    assert (row.processed, row.planned, row.published) == (2, 6, 9)
    assert (row.lag_batches, row.lag_records, row.lag) == (7, 70, "0:01:30")


def test_without_brokers_the_rest_is_shown():
    """What only brokers know is unknown, not 0."""
    planned = ran(plans(0, 2), r0_2="success")

    (row,) = progress(planned).partitions()
    assert (row.processed, row.planned, row.published, row.lag_batches) == (2, 2, None, None)


def test_before_the_plans_of_a_page_the_group_says_what_is_processed():
    """Where it says nothing, what lies before them is taken for processed."""
    planned = ran(plans(10, 12, 14)._replace(older=True), r10_12="success")

    assert planned.processed({}) == {0: 12}
    assert progress(planned, [], brokers(20, stored={0: 7})).partitions()[0].processed == 7


@pytest.mark.parametrize(
    ("lag", "text"),
    [
        (Lag(), "none"), (Lag(1, 1, 1, 0.0), "0:00:00"), (Lag(1, 1, 1, 119.4), "0:01:59"),
        (Lag(1, 1, 1, 200_000), "2 days, 7:33:20"),
    ],
)  # fmt: skip
def test_ages(lag, text):
    """The age of what lags is told in hours, minutes and seconds."""
    assert progress(plans(0, 2), [], brokers(2, lag=lag)).partitions()[0].lag == text


def test_stretches_of_a_table():
    """Offsets are told from first to last; of many stretches the first."""
    few, many = [(0, 35), (40, 41)], [(2 * n, 2 * n + 1) for n in range(9)]

    told = [progress(plans(0, 41), [table(*held)]).partitions() for held in (few, many)]

    assert [row.in_table for (row,) in told] == ["0 to 34, 40", "0, 2, 4, 6, 8, …"]


def test_a_table_that_holds_nothing_is_told_from_one_that_could_not_be_read():
    """Of the first one it is known; of the second one the page shows a question mark."""
    empty, unread = TableState("lake.clicks", {}, {}), []

    told = [progress(plans(0, 2), tables).partitions() for tables in ([empty], unread)]

    assert [row.in_table for (row,) in told] == ["none", None]
    shown = [html(partitions=rows, tables=("lake.clicks",)) for rows in told]
    assert ["<td>none</td>" in text for text in shown] == [True, False]
    assert "<td>?</td>" in shown[1]


def test_a_page_is_its_json():
    """A page becomes JSON as it is, and its numbers survive JavaScript."""
    found = progress(plans(0, 2), [table((0, 2))])
    page = TopicPage(topic="clicks", at=NOW, notes=[], audit=None, ranges=found.newest(9))

    plain = json.loads(json.dumps(jsonable_encoder(page)))
    assert plain["ranges"][0]["snapshots"][0]["snapshot_id"] == "4611686018427387904"
    assert plain["at"] == "2026-01-02T12:30:00+00:00"


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


def test_each_hour_has_its_verdict():
    """By what the runs have returned, with the run and its table; and what was consumed beside."""
    view = audited(
        audit_run(1, "not clean"), audit_run(3, "clean"), consumed=[audit_run(3, "clean")]
    )

    assert [each.stored.words for each in view.hours[:3]] == ["not clean", "", "clean"]
    assert (view.hours[0].stored.run.run_id, view.hours[0].stored.table) == ("audit 1", "/1.csv")
    assert view.hours[2].consumed.words == "clean"
    assert len(view.hours) == 24
    last = view.last_clean
    assert (last.words[:16], last.run.run_id) == ("2026-01-02T09:00", "audit 3")


def test_an_hour_that_nobody_audited_is_named():
    """It is told apart from one whose result is gone, and from those before the first audit."""
    hours = [
        Interval(THIS_HOUR_MS - back * HOUR_MS, THIS_HOUR_MS - (back - 1) * HOUR_MS)
        for back in (4, 2)
    ]

    view = audited(record=hours)

    assert [each.stored.words for each in view.hours[:5]] == [
        "not audited", "judged, result no longer kept", "not audited",
        "judged, result no longer kept", "",
    ]  # fmt: skip


def test_the_newest_judgement_of_an_hour_counts():
    """Reports come late: an audit that is run again replaces what the first one found."""
    view = audited(audit_run(2, "clean"), audit_run(2, "partly judged", name="first"))

    assert view.hours[1].stored.words == "clean"


def test_every_hour_since_the_first_audit_is_named():
    """However long nobody has audited."""
    begin_ms = THIS_HOUR_MS - 30 * 24 * HOUR_MS
    view = audited(record=[Interval(begin_ms, begin_ms + HOUR_MS)])

    assert {each.stored.words for each in view.hours} == {"not audited"}


def test_a_window_is_clean_until_something_is_found_in_it():
    """A run that looked deeper, by whichever task, is believed."""
    deep = audit_run(2, "not clean", name="deep", at=NOW + timedelta(minutes=1))
    view = audited(audit_run(2, "clean"), audit_run(5, "clean"), deep)

    assert view.hours[1].stored.words == "not clean"
    assert view.last_clean.run.run_id == "audit 5"


@pytest.mark.parametrize("verdict", ["partly judged", "not clean"])
def test_an_audit_on_demand_does_not_repaint_a_clean_hour(verdict):
    """Its window is wider or narrower: where in it the fault is, or what it lacks, is not said."""
    late = NOW + timedelta(minutes=1)
    wide = audit_run(3, verdict, hours=2.5, name="demand", at=late)
    view = audited(audit_run(3, "clean"), audit_run(2, "clean"), wide)

    assert [each.stored.words for each in view.hours[:3]] == [
        f"{verdict} (part of the hour)", "clean", "clean",
    ]  # fmt: skip
    assert [each.run.run_id for each in view.lost] == (
        ["demand 3"] if verdict == "not clean" else []
    )


def test_a_part_of_an_hour_that_was_not_judged_repaints_nothing_and_a_fault_in_it_does():
    """A fault within an hour is the hour's own."""
    late = NOW + timedelta(minutes=1)
    for verdict, shown in (("partly judged", "clean"), ("not clean", "not clean")):
        part = audit_run(2, verdict, hours=0.5, name="demand", at=late)
        assert audited(audit_run(2, "clean"), part).hours[1].stored.words == shown


def test_an_hour_that_was_not_clean_is_clean_after_an_audit_of_it():
    """By its own window or a wider one; then it is named as lost no more."""
    late = NOW + timedelta(minutes=1)
    for hours in (1, 3):
        again = audit_run(2 + (hours > 1), "clean", hours=hours, name="again", at=late)
        view = audited(audit_run(2, "not clean"), again)
        assert (view.hours[1].stored.words, view.lost) == ("clean", [])


def test_what_is_lost_stands_at_the_top():
    """Before the progress: windows that are not clean, and what retention removed unplanned."""
    audit = audited(
        audit_run(2, "not clean"), audit_run(50, "not clean"), consumed=[audit_run(3, "not clean")]
    )
    rows = progress(plans(5, 6)).partitions()

    text = html(audit=audit, removed=4, partitions=rows)

    assert [each.words.partition(" 20")[0] for each in audit.lost] == [
        "consumed: not clean", "stored: not clean",
    ]  # fmt: skip
    at_top = text[: text.index("<h2>Progress")]
    assert '<a href="/dags/audit/runs/audit%202">stored: not clean 2026-01-02T10:00' in at_top
    assert "/2.csv" in at_top
    assert "4 offsets: removed by retention before being planned" in at_top
    assert "50.csv" not in text
    assert "1 offset: removed" in html(removed=1)


def test_windows_in_part_and_made_up():
    """A window of less than the hour says so, and one that a later run made up for is there."""
    other = audit_run(5, "not clean").value
    view = audited(audit_run(2, "clean", hours=0.5, made_up=[other]))

    assert view.hours[1].stored.words == "clean (part of the hour)"
    assert view.hours[4].stored.words == "not clean"


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


@pytest.fixture
def go(monkeypatch):
    """Looks that hang until this is set are not waited for, and end with the test."""
    monkeypatch.setattr(outside, "BUDGET_S", 0.0)
    go = threading.Event()
    yield go
    go.set()


def test_looks_run_at_once_and_what_fails_is_a_line():
    """Each look waits for the other here; errors that storages have of their own are named."""
    both, notes = threading.Barrier(3, timeout=60), []

    def refused():
        both.wait()
        raise StorageError("the bucket is away")

    def broken():
        both.wait()
        raise OSError("no route")

    looks = {"the brokers": lambda: (both.wait() and 7) or 7, "table a": refused, "table b": broken}

    assert look_at(looks, notes) == {"the brokers": 7}
    assert notes == ["table a: the bucket is away", "table b: OSError: no route"]


def test_a_look_that_hangs_is_not_waited_for(go):
    """Its line comes when the time is over."""
    notes = []

    assert look_at({"a thing that hangs": lambda: go.wait(60)}, notes) == {}
    assert notes == ["a thing that hangs: no answer within 0 s"]


@follows("looks at it have not ended: try again later")
def test_looks_that_hang_do_not_pile_up(go, monkeypatch):
    """Beyond a number of them others at the same thing are refused, until some have ended."""
    started, notes = [], []

    def hang():
        started.append(1)
        go.wait(60)

    for _ in range(MAX_RUNNING + 1):
        look_at({"table a": hang}, notes)

    words = f"table a: not asked, for {MAX_RUNNING} looks at it have not ended: try again later"
    assert notes[-1] == words
    monkeypatch.setattr(outside, "BUDGET_S", 60.0)
    assert look_at({"table b": lambda: 7}, notes) == {"table b": 7}
    go.set()
    for each in threading.enumerate():
        if each.name == "memq-page":
            each.join(60)
    assert len(started) == MAX_RUNNING
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


def test_errors_are_one_line():
    """Long errors of several lines become one, cut off."""
    assert in_a_line("a\n  b\n" + "c" * 9999) == "a b " + "c" * 496
