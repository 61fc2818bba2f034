"""A big, fast, persistent queue on memory-mapped pages, usable on its own.

Mapped page files and their pool (`pool`) carry the big array (`array`), which carries the big
queue (`queue`) and the fan-out queue (`fanout`). Data may be far larger than memory; every item has
a CRC; a crash loses no more than the `sync` option allows; other processes can read meanwhile.
"""

from memq.bigqueue.array import BigArray
from memq.bigqueue.queues import BigQueue, FanOutQueue
from memq.bigqueue.recovery import Recovery

__all__ = ["BigArray", "BigQueue", "FanOutQueue", "Recovery"]
