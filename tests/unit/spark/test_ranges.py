"""From the options of a read to offsets."""

from __future__ import annotations

import pytest

from memq.core.wire.messages import PartitionOffsets
from memq.spark.options import Bound
from memq.spark.ranges import bound_offsets


class Brokers:
    """Brokers that hold this now, and have this first offset at a time."""

    def __init__(self, *found):
        self._found = found

    def offsets(self, at_ms):
        assert at_ms == 1_000
        return self._found


@pytest.mark.parametrize(("at", "wanted"), [(3, 3), (7, 5), (None, 5)])
def test_a_time_leads_to_what_was_held(at, wanted):
    """What is published between two questions to the brokers does not count."""
    held = {0: PartitionOffsets(partition=0, start=0, end=5)}
    later = Brokers(
        PartitionOffsets(partition=0, start=0, end=8, at=at),
        PartitionOffsets(partition=1, start=0, end=1, at=0),
    )

    assert bound_offsets(later, Bound(at_ms=1_000), held, "endingOffsets") == {0: wanted}
