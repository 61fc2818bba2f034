"""What the page of a topic says, from facts: states, what is missing, lag, audits, troubles."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_memq.ledger import Ledger, StoredPlan
from airflow_provider_memq.plugins import outside, pages, routes
from airflow_provider_memq.plugins.facts import (
    Audits,
    AuditTask,
    Brokers,
    Pipeline,
    Planned,
    Run,
    Snapshot,
    TableState,
)
from airflow_provider_memq.plugins.hours import audit_view
from airflow_provider_memq.plugins.looks import MAX_KEPT, MAX_RUNNING, Answer, Looks, in_a_line
from airflow_provider_memq.plugins.progress import Progress
from airflow_provider_memq.plugins.view import TopicView, age_in_words, stretches
from airflow_provider_memq.ranges import range_key
from airflow_provider_memq.topics import TopicState
from memq.client.lag import Lag
from memq.core.ranges import Interval, OffsetRange, union
from memq.core.units import iso_ms
from memq.errors import StorageError

NOW = datetime(2026, 1, 2, 12, 30, tzinfo=UTC)
LIFE = "a" * 16
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
        OffsetRange(0, start, end): Snapshot(name, 2**62 + start, 0, 10, "job")
        for start, end in held
    }
    return TableState(name, {0: union(Interval(*each) for each in held)}, snapshots)


def brokers(end, *, start=0, stored=None, incarnation=LIFE, lag=None):
    state = TopicState("clicks", incarnation, {0: start}, {0: end}, 0)
    return Brokers(state, stored or {}, {0: lag or Lag()})


def progress(planned, tables=(), asked=None, **options):
    return Progress(
        planned,
        tables,
        asked,
        now=NOW,
        to_run=lambda run: f"/{run.run_id}",
        to_range=lambda name: f"/{name}",
        **options,
    )


def missing(*arguments):
    return [(each.start, each.end, each.why) for each in progress(*arguments).missing()]


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

    (found,) = progress(planned).ranges(10)

    assert (found.state, found.runs[0].href) == (shown, "/run 0")


def test_a_range_is_processed_when_its_task_said_so():
    """A run that failed after the task that processes, at the commit, has processed its range."""
    planned = plans(0, 2)._replace(runs=runs(r0_2="failed"), done=frozenset([key(0, 2)]))

    assert progress(planned).ranges(10)[0].state == "processed"


def test_a_run_that_was_marked_has_processed_nothing():
    """A person can mark a run as success, and a group can be moved: neither puts a row anywhere."""
    planned = plans(0, 2, 4)._replace(runs=runs(r0_2="success"), done=frozenset([key(2, 4)]))
    why = "its run succeeded, and no task has said that it was processed"

    assert missing(planned) == [(0, 2, why)]
    assert missing(planned, [], brokers(4, stored={0: 4})) == [
        (0, 2, f"{why}, and the group was moved past it")
    ]
    assert progress(planned).processed() == {0: 0}
    assert progress(planned, [table((0, 2))]).ranges(9)[1].state == "in table"


def test_where_no_task_says_what_it_processed_runs_are_shown_as_they_are():
    """A DAG without an asset for that has its runs alone."""
    planned = plans(0, 2)._replace(runs=runs(r0_2="success"), is_told=False)

    assert progress(planned).ranges(9)[0].state == "success"
    assert missing(planned) == []


def test_runs_of_another_dag_do_not_say_how_far_a_range_is():
    """They are shown beside those of the DAG that processes, and change nothing."""
    found = {key(0, 2): [Run("other", "r", "success", NOW)]}
    planned = plans(0, 2)._replace(runs=found, own_dag="process")

    (shown,) = progress(planned).ranges(9)
    assert (shown.state, shown.runs, [each.dag_id for each in shown.others]) == (
        "no run", [], ["other"],
    )  # fmt: skip
    assert missing(planned) == [(0, 2, "planned, and without a run")]
    found[key(0, 2)].insert(0, Run("process", "r", "failed", NOW))
    assert missing(planned) == [(0, 2, "its run failed")]


def test_what_is_processed_beyond_the_plans_is_told(monkeypatch):
    """A restored database of Airflow is behind: nothing is missing then, as far as it knows."""
    monkeypatch.setattr(pages, "_ask_brokers", lambda *_: "brokers")
    for stored, notes in (({0: 2}, 0), ({0: 7}, 1)):
        told = []
        answer = Answer(brokers(9, stored=stored), "")
        monkeypatch.setattr(pages, "_looks", SimpleNamespace(wait=lambda _, it=answer: it))
        pages._progress(Pipeline("clicks", "r", "plan"), plans(0, 2), told, NOW, "")
        assert len(told) == notes
    assert "partition 0 is planned up to 2, and offset 7 is committed" in told[0]


def test_a_range_that_failed_and_was_passed_over_is_missing():
    """That its group was moved past it has processed nothing."""
    planned = ran(plans(0, 2, 4), r0_2="failed", r2_4="success")
    asked = brokers(4, stored={0: 4})

    assert [each.state for each in progress(planned, [], asked).ranges(9)] == [
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

    assert [each.state for each in progress(planned, held).ranges(9)] == ["in table"] * 2
    assert missing(planned, held) == [(0, 2, "its run failed")]
    assert missing(planned._replace(done=frozenset([key(0, 2)])), held) == []


def test_runs_that_a_user_may_not_see_are_not_missing(monkeypatch):
    """Nothing is said about the runs of a range where there may be some."""
    monkeypatch.setattr(pages, "_ask_brokers", lambda *_: "brokers")
    monkeypatch.setattr(pages, "_looks", SimpleNamespace(wait=lambda _: Answer(None, "")))
    for hidden, state, notes in (
        (0, "no run", []),
        (1, "unknown", ["1 DAG that you may not read: runs of ranges are missing here"]),
    ):
        told = []
        pipeline = Pipeline("clicks", "r", "plan", hidden_dags=hidden)
        found, _ = pages._progress(pipeline, plans(0, 2), told, NOW, "")
        assert (found.ranges(9)[0].state, told) == (state, notes)

    hidden = progress(plans(0, 2), [], brokers(2, stored={0: 0}), sees_runs=False)
    assert hidden.missing() == []


def test_a_range_without_a_run_waits_and_then_is_missing():
    """For some minutes a run may still come; then there is none, and the page says so."""
    early = plans(0, 2, ago=timedelta(minutes=1))
    assert progress(early).ranges(10)[0].state == "waiting"
    assert missing(early) == []

    late = plans(0, 2, 4)
    assert progress(late).ranges(10)[0].state == "no run"
    assert missing(late) == [(0, 4, "planned, and without a run")]


def test_runs_that_were_cleaned_away_are_not_missing():
    """What had its run before Airflow's database was cleaned is unknown, and not without a run."""
    planned = plans(0, 2)._replace(all_have_runs=NOW)

    for asked in (None, brokers(2), brokers(2, stored={1: 0})):
        assert progress(planned, [], asked).ranges(10)[0].state == "unknown"
        assert missing(planned, [], asked) == []


def test_a_range_without_its_run_is_missing_where_the_group_has_not_passed_it():
    """The group's offset says what no run does; a range that was just planned has some time."""
    asked, why = brokers(4, stored={0: 2}), "no run of it is kept, and the group has not passed it"
    planned = plans(0, 2, 4)._replace(all_have_runs=NOW)

    assert missing(planned, [], asked) == [(2, 4, why)]
    assert missing(planned, [table((2, 4))], asked) == [
        (0, 2, "passed, and not in table lake.clicks")
    ]
    early = plans(0, 2, 4, ago=timedelta(minutes=1))._replace(all_have_runs=NOW)
    assert missing(early, [], asked) == []


@pytest.mark.parametrize("sees_runs", [True, False])
def test_what_the_group_alone_has_passed_is_not_called_processed(sees_runs):
    """It may have been moved past a range that failed, the run of which is gone or hidden."""
    planned = plans(0, 2, 4)._replace(all_have_runs=NOW, done=frozenset([key(2, 4)]))

    found = progress(planned, [], brokers(4, stored={0: 4}), sees_runs=sees_runs)

    assert [each.state for each in found.ranges(9)] == ["processed", "passed"]
    assert found.missing() == []


@pytest.mark.parametrize("ranges", [[(0, 2)], [(2, 4)]])
def test_the_word_for_what_the_group_has_passed_is_explained(ranges):
    """A page that has it says what it means, and others do not."""
    planned = plans(0, 2, 4)._replace(done=frozenset(key(*each) for each in ranges))
    found = progress(planned, [], brokers(4, stored={0: 2})).ranges(9)
    view = TopicView(topic="clicks", at="", incarnation=LIFE, ranges=found)

    text = routes._html("topic.html", 200, page=view, json="index.json").body.decode()

    assert ("Passed: the group is past it" in text) == (ranges == [(2, 4)])


@pytest.mark.parametrize(
    ("planned", "start", "end", "life", "state"),
    [
        (plans(0, 2, 4), 0, 2, LIFE, "in table"),
        (plans(0, 2, 4), 0, 2, "b" * 16, "of another incarnation"),
        (plans(6, 8), 7, 9, LIFE, "not planned"),
        (plans(0, 2, 4)._replace(plans=[]), 5, 7, LIFE, "not planned"),
        (plans(6, 8)._replace(plans=[]), 4, 6, LIFE, "unknown"),
    ],
)
def test_a_range_that_is_in_none_of_the_plans_says_so(planned, start, end, life, state):
    """Neither the group nor a table tells about it; what lies before the plans may have been."""
    offsets = OffsetRange(0, start, end, life)

    found = progress(planned, [table((0, 2))], brokers(9, stored={0: 9})).range(offsets)

    assert (found.state, bool(found.snapshots)) == (state, state == "in table")


def test_a_range_is_in_the_table_by_the_ledger_of_the_table():
    """Whatever became of its run; the snapshot is named until it has expired."""
    planned = ran(plans(0, 2, 4), r0_2="failed", r2_4="success")
    expired = table((0, 2))._replace(snapshots={})

    second, first = progress(planned, [table((0, 2))]).ranges(10)
    assert (first.state, first.snapshots[0].snapshot_id) == ("in table", str(2**62))
    assert (second.state, second.snapshots) == ("processed", [])
    assert progress(planned, [expired]).ranges(10)[1].state == "in table"


def test_a_range_of_which_a_part_is_in_the_table_is_missing_there():
    """It is in only with all its offsets."""
    planned = plans(0, 4)._replace(done=frozenset([key(0, 4)]))

    assert progress(planned, [table((0, 2))]).ranges(10)[0].state == "processed"
    assert missing(planned, [table((0, 2))]) == [(0, 4, "processed, and not in table lake.clicks")]


def test_ranges_come_in_pages():
    """The newest first, and each on one page."""
    found = progress(plans(*range(8)))

    starts = [each.start for skip in (0, 3, 6) for each in found.ranges(3, skip)]
    assert starts == [6, 5, 4, 3, 2, 1, 0]


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
    assert progress(planned).missing()[0].href == f"/{key(5, 6)}"


def test_old_gaps_hide_nothing():
    """What was removed long ago stays in the ledger, and comes after what can still be mended."""
    gaps = [{"partition": 0, "start": 10 * n, "end": 10 * n + 1} for n in range(60)]
    planned = plans(700, 702, skipped=gaps)._replace(runs=runs(r700_702="failed"))

    found = [why for _, _, why in missing(planned, [], brokers(704))]

    assert found[:2] == ["its run failed", "published, and not planned yet"]
    assert set(found[2:]) == {"removed by retention before it was planned"}


def test_nothing_is_called_missing_of_another_topic():
    """Of a topic that was recreated, the offsets of the new one say nothing about the old one."""
    planned = ran(plans(0, 2), r0_2="success")
    other = brokers(9, incarnation="b" * 16, stored={0: 9})

    assert missing(planned, [], other) == []
    assert progress(planned, [], other).partitions()[0].published is None


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
    assert (row.lag_batches, row.lag_records, row.lag) == (7, 70, "90 s")


def test_without_brokers_the_rest_is_shown():
    """What only brokers know is unknown, not 0."""
    planned = ran(plans(0, 2), r0_2="success")

    (row,) = progress(planned).partitions()
    assert (row.processed, row.planned, row.published, row.lag_batches) == (2, 2, None, None)


def test_before_the_plans_of_a_page_the_group_says_what_is_processed():
    """Where it says nothing, what lies before them is taken for processed."""
    planned = ran(plans(10, 12, 14)._replace(older=True), r10_12="success")

    assert progress(planned).processed() == {0: 12}
    assert progress(planned, [], brokers(20, stored={0: 7})).processed() == {0: 7}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (200_000, "2 d")],
)
def test_ages(seconds, text):
    """A time that has passed is told in one unit."""
    assert age_in_words(seconds) == text


def test_stretches_of_a_table():
    """Offsets are told from first to last; of many stretches the first."""
    assert stretches([Interval(0, 35), Interval(40, 41)]) == "0 to 34, 40"
    assert stretches([Interval(2 * n, 2 * n + 1) for n in range(9)]).endswith("8, …")


def test_a_table_that_holds_nothing_is_told_from_one_that_could_not_be_read():
    """Of the first one it is known; of the second one the page shows a question mark."""
    empty, unread = TableState("lake.clicks", {}, {}), []

    told = [progress(plans(0, 2), tables).partitions()[0].in_table for tables in ([empty], unread)]

    assert told == ["none", ""]


def test_a_page_is_its_json():
    """The view of a page becomes JSON as it is, and its numbers survive JavaScript."""
    found = progress(plans(0, 2), [table((0, 2))])
    view = TopicView(topic="clicks", at="", partitions=found.partitions(), ranges=found.ranges(9))

    plain = json.loads(json.dumps(asdict(view)))
    assert plain["ranges"][0]["snapshots"][0]["snapshot_id"] == "4611686018427387904"


# -- audits ---------------------------------------------------------------------------------


def audit_run(back, verdict, *, hours=1, made_up=(), name="audit"):
    """A run that judged the window that began so many hours before this one."""
    start_ms = THIS_HOUR_MS - back * HOUR_MS
    window = {"start": iso_ms(start_ms), "end": iso_ms(start_ms + round(hours * HOUR_MS))}
    result = {**window, "verdict": verdict, "table": f"/{back}.csv", "made_up": list(made_up)}
    return Run("audit", f"{name} {back}", "success", NOW, result)


def audited(*runs, record=(), consumed=()):
    tasks = [AuditTask("audit", False, list(runs)), AuditTask("audit", True, list(consumed))]
    return audit_view(Audits(tasks, list(record)), NOW, lambda run: f"/{run.run_id}")


def test_each_hour_has_its_verdict():
    """By what the runs have returned, with the run and its table; and what was consumed beside."""
    view = audited(
        audit_run(1, "not clean"), audit_run(3, "clean"), consumed=[audit_run(3, "clean")]
    )

    assert [each.stored.verdict for each in view.hours[:3]] == ["not clean", "", "clean"]
    assert (view.hours[0].stored.run, view.hours[0].stored.table) == ("/audit 1", "/1.csv")
    assert view.hours[2].consumed.verdict == "clean"
    assert len(view.hours) == 24
    assert (view.last_clean[:16], view.last_clean_run) == ("2026-01-02T09:00", "/audit 3")


def test_an_hour_that_nobody_audited_is_named():
    """It is told apart from one whose result is gone, and from those before the first audit."""
    hours = [
        Interval(THIS_HOUR_MS - back * HOUR_MS, THIS_HOUR_MS - (back - 1) * HOUR_MS)
        for back in (4, 2)
    ]

    view = audited(record=hours)

    assert [each.stored.verdict for each in view.hours[:5]] == [
        "not audited", "judged, result no longer kept", "not audited",
        "judged, result no longer kept", "",
    ]  # fmt: skip


def test_the_newest_judgement_of_an_hour_counts():
    """Reports come late: an audit that is run again replaces what the first one found."""
    view = audited(audit_run(2, "clean"), audit_run(2, "partly judged", name="first"))

    assert view.hours[1].stored.verdict == "clean"


def test_every_hour_since_the_first_audit_is_named():
    """However long nobody has audited."""
    begin_ms = THIS_HOUR_MS - 30 * 24 * HOUR_MS
    view = audited(record=[Interval(begin_ms, begin_ms + HOUR_MS)])

    assert {each.stored.verdict for each in view.hours} == {"not audited"}


def test_a_window_is_clean_until_something_is_found_in_it():
    """A run that looked deeper, by whichever task, is believed."""
    deep = audit_run(2, "not clean", name="deep")._replace(at=NOW + timedelta(minutes=1))
    view = audited(audit_run(2, "clean"), audit_run(5, "clean"), deep)

    assert view.hours[1].stored.verdict == "not clean"
    assert view.last_clean_run == "/audit 5"


@pytest.mark.parametrize("verdict", ["partly judged", "not clean"])
def test_an_audit_on_demand_does_not_repaint_a_clean_hour(verdict):
    """Its window is wider or narrower: where in it the fault is, or what it lacks, is not said."""
    late = NOW + timedelta(minutes=1)
    wide = audit_run(3, verdict, hours=2.5, name="demand")._replace(at=late)
    view = audited(audit_run(3, "clean"), audit_run(2, "clean"), wide)

    assert [each.stored.verdict for each in view.hours[:3]] == [
        f"{verdict} (part of the hour)", "clean", "clean",
    ]  # fmt: skip
    assert [each.run for each in view.lost] == (["/demand 3"] if verdict == "not clean" else [])


def test_a_part_of_an_hour_that_was_not_judged_repaints_nothing_and_a_fault_in_it_does():
    """A fault within an hour is the hour's own."""
    late = NOW + timedelta(minutes=1)
    for verdict, shown in (("partly judged", "clean"), ("not clean", "not clean")):
        part = audit_run(2, verdict, hours=0.5, name="demand")._replace(at=late)
        assert audited(audit_run(2, "clean"), part).hours[1].stored.verdict == shown


def test_an_hour_that_was_not_clean_is_clean_after_an_audit_of_it():
    """By its own window or a wider one; then it is named as lost no more."""
    late = NOW + timedelta(minutes=1)
    for hours in (1, 3):
        again = audit_run(2 + (hours > 1), "clean", hours=hours, name="again")._replace(at=late)
        view = audited(audit_run(2, "not clean"), again)
        assert (view.hours[1].stored.verdict, view.lost) == ("clean", [])


def test_what_is_lost_stands_at_the_top():
    """Before the progress: windows that are not clean, and what retention removed unplanned."""
    view = audited(
        audit_run(2, "not clean"), audit_run(50, "not clean"), consumed=[audit_run(3, "not clean")]
    )
    planned = plans(5, 6, skipped=[{"partition": 0, "start": 1, "end": 5}])
    lost = [*view.lost, *pages._removed(planned)]
    page = TopicView(
        topic="clicks",
        at="",
        lost=lost,
        audit=view,
        partitions=progress(planned).partitions(),
    )

    text = routes._html("topic.html", 200, page=page, json="index.json").body.decode()

    assert [each.verdict.partition(" 20")[0] for each in lost] == [
        "consumed: not clean",
        "stored: not clean",
        "4 offsets: removed by retention before being planned",
    ]
    assert text.index("/2.csv") < text.index("4 offsets") < text.index("Progress")


def test_windows_in_part_and_made_up():
    """A window of less than the hour says so, and one that a later run made up for is there."""
    other = audit_run(5, "not clean").result
    view = audited(audit_run(2, "clean", hours=0.5, made_up=[other]))

    assert view.hours[1].stored.verdict == "clean (part of the hour)"
    assert view.hours[4].stored.verdict == "not clean"


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"start": 5, "end": [], "verdict": "clean"},
        {"start": "x", "made_up": None},
        {"made_up": 5},
        {"made_up": {"start": "x"}},
        {"made_up": [5, "x"]},
    ],
)
def test_other_results_are_passed_over(result):
    """What is no result of an audit makes no verdict, and no error."""
    view = audited(Run("audit", "r", "success", NOW, result))

    assert {each.stored.verdict for each in view.hours} == {""}


# -- looks outside --------------------------------------------------------------------------


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


def test_an_answer_is_kept_for_some_seconds():
    """Who asks again meanwhile gets the same, an error as well; then it is looked at anew."""
    clock, asked = Clock(), []

    def see():
        asked.append(1)
        raise StorageError("the bucket is away")

    looks = Looks(keep_s=5, clock=clock)
    for clock.now_s in (0.0, 4.0, 5.0):
        assert looks.wait(looks.start("k", "table t", see)).trouble == "table t: the bucket is away"
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("missed_after", "state"), [("", "no run"), ("2h", "waiting"), ("soon", "no run")]
)
def test_a_range_waits_for_its_run_as_long_as_the_planner_does(monkeypatch, missed_after, state):
    """Its page calls a range missing when the planner would emit it again, and no sooner."""
    monkeypatch.setattr(pages, "_looks", Looks(clock=Clock()))
    monkeypatch.setattr(outside, "ask_brokers", lambda *_: brokers(2))
    pipeline = Pipeline("clicks", "ranges", "plan", missed_after=missed_after)

    found, _ = pages._progress(pipeline, plans(0, 2), [], NOW, "")

    assert found.ranges(1)[0].state == state


def test_what_was_seen_before_a_range_was_processed_is_looked_at_anew(monkeypatch):
    """A kept answer would call the range missing from its table, and count its Batches as lag."""
    monkeypatch.setattr(pages, "_looks", Looks(clock=Clock()))
    in_table = []
    monkeypatch.setattr(outside, "read_table", lambda *_: table(*in_table))
    monkeypatch.setattr(
        outside, "ask_brokers", lambda _, planned: brokers(2, lag=Lag(0 if planned.runs else 2))
    )
    pipeline = Pipeline("clicks", "ranges", "plan", tables=("lake.clicks",))

    def page(planned):
        notes = []
        found, _ = pages._progress(pipeline, planned, notes, NOW, "")
        assert notes == []
        return found

    before = plans(0, 2, ago=timedelta(minutes=1))
    assert page(before).partitions()[0].lag_batches == 2
    in_table.append((0, 2))
    after = page(ran(before, r0_2="success"))

    assert after.missing() == []
    assert (after.partitions()[0].in_table, after.partitions()[0].lag_batches) == ("0 to 1", 0)


def test_a_look_that_hangs_is_not_waited_for():
    """Its trouble comes when its time is over, at once for who comes later; nobody looks twice."""
    clock, begun, go = Clock(), [], threading.Event()

    def see():
        begun.append(1)
        go.wait(60)
        return 7

    looks = Looks(budget_s=3, clock=clock)
    first = looks.start("k", "the brokers", see)
    clock.now_s = 30.0
    assert looks.wait(first).trouble == "the brokers: no answer within 3 s"
    again = looks.start("k", "the brokers", see)
    assert (again, len(begun)) == (first, 1)
    go.set()
    first.done.wait(60)
    assert looks.wait(again) == (7, "")


def test_looks_that_hang_do_not_pile_up():
    """Beyond a number of them others are refused in a line, until some have ended."""
    go, clock = threading.Event(), Clock()
    looks = Looks(budget_s=0, clock=clock)
    hanging = [looks.start(n, f"table {n}", lambda: go.wait(60)) for n in range(MAX_RUNNING)]

    refused = looks.wait(looks.start("k", "table k", lambda: 7))
    assert refused.trouble.startswith("table k: not asked")
    go.set()
    for each in hanging:
        assert each.done.wait(60)
    clock.now_s = 10.0
    late = looks.start("k", "table k", lambda: 7)
    assert late.done.wait(60)
    assert looks.wait(late).value == 7


def test_many_quick_looks_are_not_called_slow():
    """The oldest answers make room for one more, and the others are kept."""
    asked = []
    looks = Looks(clock=Clock())

    for n in [*range(MAX_KEPT), "one more", MAX_KEPT - 1, 0]:
        answer = looks.wait(looks.start(n, f"table {n}", lambda n=n: asked.append(n) or n))
        assert answer == (n, "")

    assert asked == [*range(MAX_KEPT), "one more", 0]


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
