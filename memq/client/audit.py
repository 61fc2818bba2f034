"""Reading the audit of a topic: reports and notifications in, findings out.

What belongs to a window is decided by the brokers' clock alone: a report belongs to the window in
which it was stored. So windows that meet hold each report exactly once, however producers' clocks
go. The Messages that a report names were stored before it, or a little later; notifications are
read from around the window, and if a Message is still missing then, all others are read as well
before it is called lost.

Not judged, but counted, are reports that are not closed yet, and those whose Messages retention
removes or may remove while the audit runs. (See `memq.core.audit` for the findings.)
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from memq.client.audit_objects import Inspection, ObjectReader, inspect
from memq.client.audit_reports import StoredReport, read_reports
from memq.client.cluster import Cluster
from memq.client.queue import QueueClient
from memq.client.source import Place, name_of
from memq.core.audit import AuditResult, ProducerName, Run
from memq.core.notification.notification import decode_notification
from memq.core.reconciliation import Reconciliation
from memq.core.topic import AUDIT_TOPIC
from memq.core.wire.messages import FetchWatermark
from memq.errors import CorruptDataError, InvalidRequestError, OffsetOutOfRangeError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from memq.core.format.batch import ProducerRun
    from memq.core.notification.notification import Notification
    from memq.core.wire.messages import (
        NotificationEntry,
        PartitionOffsets,
        TopicInfo,
        WatermarkAnswer,
    )
