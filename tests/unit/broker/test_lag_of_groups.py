"""The lag of groups on /metrics: what fails costs itself and nothing else."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest

from memq.broker import lag
from memq.core.topic import TopicConfig
from memq.core.wire import messages as m
from memq.errors import CorruptDataError, QueueError, UnavailableError
from tests.integration.broker.support import broker, failing

GROUPS = {"t": "gh", "u": "g", "v": "k", "z": "g"}  # of z another broker keeps them
ALL = [("g", "t"), ("h", "t"), ("g", "u"), ("k", "v")]


@asynccontextmanager
async def shown(tmp_path):
    """A broker of topics with groups, and what a scrape shows of them."""
    async with broker(tmp_path) as b:
        for topic, groups in GROUPS.items():
            await b.topics.create(TopicConfig.create(topic))
            for group in groups:
                offsets = [m.PartitionOffset(0, 0)]
                commit = m.CommitOffsets(group=group, topic=topic, member_id="", offsets=offsets)
                await b.handlers.serve(commit)
        b.topics.get("z").coordinated = False

        async def scrape():
            await b.admin._lags.refresh()
            return [(row.group, row.topic) for row in b.context.metrics.lag.rows]

        yield b, scrape


def of(what) -> str:
    """The name of a topic or group."""
    return getattr(what, "name", what)


@pytest.mark.parametrize(
    "case",
    [
        ("groups", "t.", QueueError("away"), {"t"}, "t: lag is not known: away"),
        ("lags", "t", UnavailableError("too fast"), {"t"}, "t: lag is not known: too fast"),
        ("committed", "h", CorruptDataError("not JSON"), {"h"}, "t: lag of h is not known: not"),
        ("committed", "g", CorruptDataError("not JSON"), {"g"}, "t: lag of g is not known: not"),
        ("groups", "u.", ZeroDivisionError("bug"), set(), "unexpected error looking up the lag"),
    ],
)
async def test_what_cannot_be_told_costs_itself(tmp_path, caplog, case):
    """It is said, and the topics and groups after it are shown; a bug keeps what was known."""
    call, about, error, missing, said = case
    async with shown(tmp_path) as (b, scrape):
        assert await scrape() == ALL
        owner = b.admin._lags._counter if call == "lags" else b.context.queue
        with failing(owner, call, error, lambda what, *_: of(what).startswith(about)):
            assert await scrape() == [each for each in ALL if not missing & {*each}]
        assert said in caplog.text
        assert await scrape() == ALL


@pytest.mark.parametrize(("most", "left_out"), [(4, 0), (3, 1), (2, 2), (1, 3)])
async def test_groups_beyond_the_bound_are_counted(tmp_path, monkeypatch, most, left_out):
    """A group is shown in full or not at all, and how many are not is told over all topics."""
    monkeypatch.setattr(lag, "MAX_LAG_ROWS", most)
    async with shown(tmp_path) as (b, scrape):
        assert await scrape() == ALL[:most]
        assert b.context.metrics.lag.left_out == left_out
