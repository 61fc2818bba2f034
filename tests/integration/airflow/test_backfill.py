"""A backfill: which ranges it runs, what it leaves out, and that no offset is in two ranges."""

import asyncio
from argparse import Namespace
from random import Random
from types import SimpleNamespace

import pytest
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_provider_memq.hooks.memq import MemqHook
from airflow_provider_memq.launch.range_job import manifest_path
from airflow_provider_memq.operators.backfill import after_range
from airflow_provider_memq.operators.memq import MemqBackfillOperator
from airflow_provider_memq.planning.ranges import parse_key
from airflow_provider_memq.planning.topics import contents_of
from memq.errors import ConfigError, OffsetOutOfRangeError
from tests.fakes.light_app import write_manifest
from tests.integration.airflow.here import DONE, PLAN, RANGES, RETENTION_S, TOPIC, plan, spans


@pytest.fixture
async def here(here, tmp_path):
    here.lake = tmp_path / "lake"
    return here


def backfill(here, **options):
    given = {"output_dir": str(here.lake), "preview": False} | options
    return MemqBackfillOperator(task_id="backfill", topic=TOPIC, ranges=RANGES, **given)


def offsets(start, end):
    return [f"00000:{start:012d}-{end:012d}"]


async def process(here, keys, **wrong):
    """What a job leaves behind: the manifests of ranges."""
    await asyncio.to_thread(_process, here, keys, wrong)


def _process(here, keys, wrong):
    for each in map(parse_key, keys):
        with MemqHook().topic(TOPIC) as client:
            found = contents_of(client, each)
        path = manifest_path(None, str(here.lake), TOPIC, found.range)
        given = Namespace(job="job", topic=TOPIC, manifest=path, **found.range._asdict())
        write_manifest(given, found._replace(**wrong), str(here.lake), 1)


async def test_whole_planned_ranges_are_run_and_the_plan_does_not_move(here):
    """What touches the wanted offsets; a dry run lists it, and nothing is emitted for it."""
    await here.publish(8)
    await here.run(plan(max_offsets=3))
    planned = here.store.keys(RANGES)

    shown = await here.run(backfill(here, keys=offsets(2, 4), preview=True))
    assert here.store.xcoms["backfill"]["batches"] == 6
    assert await here.run(backfill(here, keys=offsets(2, 4))) == shown
    assert spans(shown) == [(0, 3), (3, 6)]
    assert here.store.keys(RANGES) == planned
    assert (await here.run(plan()))["ranges"] == []


async def test_what_has_its_manifest_is_left_out(here):
    """One that was stopped goes on where it was; `again` runs all; a wrong manifest counts not."""
    await here.publish(6)
    await here.run(plan(max_offsets=2))
    everything = await here.run(backfill(here, keys=offsets(0, 6)))
    await process(here, everything[:1])
    await process(here, everything[1:2], records=7)

    assert await here.run(backfill(here, keys=offsets(0, 6))) == everything[1:]
    assert here.store.xcoms["backfill"]["done"] == 1
    assert await here.run(backfill(here, keys=offsets(0, 6), again="True")) == everything
    await process(here, everything[1:])
    assert await here.run(backfill(here, keys=offsets(0, 6))) == []


async def test_a_run_takes_so_many_and_the_next_one_the_rest(here):
    """The oldest come first; with `again` nothing tells where the one before ended."""
    await here.publish(5)
    await here.run(plan(max_offsets=1))

    first = await here.run(backfill(here, keys=offsets(0, 5), max_ranges=3))
    assert here.store.xcoms["backfill"]["left"] == 2
    await process(here, first)
    rest = await here.run(backfill(here, keys=offsets(0, 5), max_ranges="3"))
    assert spans(first + rest) == [(n, n + 1) for n in range(5)]

    with pytest.raises(ConfigError, match="again asks for 5 ranges, and one run takes 3"):
        await here.run(backfill(here, keys=offsets(0, 5), max_ranges=3, again=True))
    assert len(await here.run(backfill(here, keys=offsets(0, 3), max_ranges=3, again=True))) == 3


@pytest.fixture
async def cut_short(here):
    """Ranges 0 to 4 and 4 to 7, of which retention has removed 0 and 1."""
    await here.publish(2)
    here.later(RETENTION_S - 1)
    await here.publish(2)
    await here.run(plan(max_offsets=4))
    await here.publish(3)
    await here.run(plan(max_offsets=3))
    here.later(2)  # with several seconds to spare until the next ones are due
    assert await here.expire() == 2
    return here


async def test_a_window_without_a_start_does_without_what_cannot_be_run_whole(cut_short, capsys):
    """It begins with what is retained: behind a range whose beginning retention has removed."""
    assert spans(await cut_short.run(backfill(cut_short, end=cut_short.at(1)))) == [(4, 7)]
    assert cut_short.store.xcoms["backfill"]["removed"] == 1
    assert "The backfill begins behind it" in capsys.readouterr().out


@pytest.mark.parametrize("by", ["keys", "start"])
async def test_a_range_that_was_asked_for_and_cannot_be_run_whole_is_refused(cut_short, by):
    """Its rows would be missing, and nobody would know."""
    start = cut_short.at(-RETENTION_S / 2)
    asked = {"keys": {"keys": offsets(3, 6)}, "start": {"start": start}}[by]
    with pytest.raises(OffsetOutOfRangeError, match=r"-000000000004@.* cannot be run") as refused:
        await cut_short.run(backfill(cut_short, **asked))
    assert "ask by keys: partition 0, 4 and later" in str(refused.value)
    assert spans(await cut_short.run(backfill(cut_short, keys=offsets(4, 6)))) == [(4, 7)]


async def test_what_is_older_than_the_first_plan_is_cut_once(here):
    """By bytes, and for good: whatever window and size come later, no offset is in two ranges."""
    await here.publish(12)
    with pytest.raises(ConfigError, match="nothing was planned yet"):
        await here.run(backfill(here, keys=offsets(0, 12)))
    await here.run(plan(start="latest"))
    await here.publish(4)
    await here.run(plan())

    await here.run(backfill(here, keys=offsets(0, 12), preview=True))
    size = here.store.xcoms["backfill"]["bytes"] // 12
    middle = await here.run(backfill(here, keys=offsets(5, 9), max_bytes=2 * size + 9))
    everything = await here.run(backfill(here, keys=offsets(0, 16), max_bytes="1GiB"))

    assert spans(middle) == [(5, 7), (7, 9)]
    assert spans(everything) == [(0, 5), (5, 7), (7, 9), (9, 12), (12, 16)]
    assert await here.run(backfill(here, keys=offsets(0, 16), max_bytes=1)) == everything


async def test_what_a_backfill_has_cut_is_known_by_its_manifests(here):
    """Where Airflow has forgotten how it was cut, it is not cut anew beside what there is."""
    await here.publish(12)
    await here.run(plan(start="latest"))
    first = await here.run(backfill(here, keys=offsets(3, 9), max_bytes=6000))
    await process(here, first)
    await here.publish(1)
    await here.run(plan())
    del here.store.events[PLAN.name][:-1]  # as `airflow db clean` does

    second = await here.run(backfill(here, keys=offsets(0, 12), max_bytes=6000))

    cut = sorted([*spans(first), *spans(second)])
    assert [offset for span in cut for offset in range(*span)] == list(range(12))
    assert here.store.xcoms["backfill"]["done"] == len(first) > 1


async def test_no_offset_is_in_two_ranges_whatever_is_asked(here):
    """Plans, windows, sizes and tries that die, in any order: all offsets, each in one range."""
    randomness = Random(5)
    await here.publish(20)
    await here.run(plan(start='{"0": 13}', max_offsets=2))
    for _ in range(25):
        start = randomness.randrange(19)
        asked = offsets(start, randomness.randrange(start + 1, 20))
        crash = randomness.random() < 0.4
        size = randomness.randrange(1, 4000)
        keys = await here.run(backfill(here, keys=asked, max_bytes=size), crash=crash)
        if not crash:
            await process(here, keys)
    rest = await here.run(backfill(here, keys=offsets(0, 20)))
    await process(here, rest)

    names = sorted(path.stem for path in here.lake.rglob("*.json"))
    written = [tuple(map(int, name.split("-"))) for name in names]
    assert [n for start, end in written for n in range(start, end)] == list(range(20))


async def test_plans_that_airflow_has_forgotten_are_not_passed_over(here):
    """A window is not called done while ranges of it are not known; one after them is."""
    for _ in range(3):
        await here.publish(2)
        await here.run(plan())
    del here.store.events[PLAN.name][1]

    with pytest.raises(ConfigError, match=r"how .*2.* of 't' were planned is not known"):
        await here.run(backfill(here, keys=offsets(0, 6)))
    assert spans(await here.run(backfill(here, keys=offsets(4, 6)))) == [(4, 6)]


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"keys": offsets(0, 1), "start": "x"},
        {"start": "soon"},
        {"end": "x", "max_bytes": "1 x"},
        {"start": "2026-01-02T00:00:00Z", "end": "2026-01-01T00:00:00Z"},
        {"keys": offsets(0, 1), "max_ranges": 0},
        {"keys": "[00000:000000000000-000000000001]"},
        {"keys": "[1]"},
        {"keys": [1]},
        {"keys": "00007:000000000000-000000000001"},
    ],
)
async def test_a_backfill_must_be_told_what(here, asked):
    """Neither nothing nor two things at a time, nor what is no time or size."""
    await here.publish(1)
    await here.run(plan())
    with pytest.raises(ConfigError):
        await here.run(backfill(here, **asked))
    assert len(here.store.events[PLAN.name]) == 1


def test_events_of_a_mapped_task_name_its_range():
    """As those of a run for one range do, so that the group's offsets move over it."""
    outlets = OutletEventAccessors()
    result = {"partition": 0, "start": 5, "end": 9, "topic_id": "a" * 16, "records": 1}

    after_range({"task": SimpleNamespace(outlets=[DONE]), "outlet_events": outlets}, result)

    assert outlets[DONE].partition_keys == {offsets(5, 9)[0] + "@" + "a" * 16}
