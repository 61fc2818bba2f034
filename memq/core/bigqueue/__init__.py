"""Deprecated: import from `memq.bigqueue`."""

from memq.bigqueue import BigArray, BigQueue, FanOutQueue, Recovery

__all__ = ["BigArray", "BigQueue", "FanOutQueue", "Recovery"]
