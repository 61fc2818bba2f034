"""What `MemqRetentionOperator` warns of, and what it knows to be left out on purpose."""

import asyncio
import re

import pytest

from memq.cli.main import main
from memq.errors import DataLossError
from tests.integration.airflow.here import RETENTION_S, plan, retention


async def remove_all(here):
    here.later(RETENTION_S + 1)
    assert await here.expire()


async def test_what_was_left_out_at_the_start_is_no_loss(here):
    """What lies before the first plan is nobody's to process, whether it is retained or removed."""
    await here.publish(3)
    await here.run(plan(start="latest"))

    assert (await here.run(retention(warn_before="1h")))["partitions"][0]["left_ms"] is None
    await remove_all(here)
    assert (await here.run(retention()))["partitions"][0]["removed"] == 0


async def test_a_gap_that_was_skipped_is_no_loss(here):
    """What a plan has recorded as removed raises no more alarms; before that, it does."""
    await here.run(plan())
    await here.publish(3)
    await remove_all(here)

    with pytest.raises(DataLossError, match=r"partition 0, offsets 0 to 2: removed before"):
        await here.run(retention())
    await here.run(plan(on_removed="skip"))
    assert (await here.run(retention()))["partitions"][0]["removed"] == 0


async def test_planned_ranges_that_were_removed_unprocessed_are_lost(here):
    """What was planned, not processed, and is gone fails the task until the group is moved on."""
    await here.publish(2)
    await here.run(plan())
    await remove_all(here)

    with pytest.raises(DataLossError, match=r"offsets 0 to 1: removed .* reset-offsets") as lost:
        await here.run(retention())
    command = re.search("`memq (.*)`", str(lost.value))[1].replace("--partition N", "--partition 0")
    arguments = [*command.split(), "--bootstrap", here.broker.address]
    assert await asyncio.to_thread(main, arguments) == 0
    assert (await here.run(retention()))["partitions"][0]["removed"] == 0
