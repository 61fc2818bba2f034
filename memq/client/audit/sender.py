"""Writing audit reports to the audit topic.

They are ordinary LogMessages with acks=all. The value is the JSON of the report, the key says what
it is about (`memq.core.audit.reports.report_key`). They go out one Message at a time under a name
of their own, so this is a producer in its simplest form and needs nothing of the other; it is not
audited itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memq.core.audit.reports import report_key
from memq.core.checksum import crc32c
from memq.core.format.message import encode_message, encode_records
from memq.core.topic import AUDIT_TOPIC
from memq.core.wire.messages import Write
from memq.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memq.client.audit.backlog import Outgoing, R
    from memq.client.cluster import Cluster

_ACKS_ALL = -1


class ReportSender:
    """Sends reports, one Message at a time.

    Args:
        cluster: the brokers.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._id = f"audit-{cluster.runtime.token_hex(8)}"
        self._sequence = 0

    def __repr__(self) -> str:
        return f"<ReportSender {self._id} [{self._sequence} sent]>"

    async def send(
        self, reports: Sequence[Outgoing[R]], timeout_s: float, *, refresh: bool = False
    ) -> None:
        """Write one Message; a repeat inside the call has the same name and bytes.

        Args:
            reports: what it holds.
            timeout_s: deadline of the call.
            refresh: ask anew where the audit topic is; after a failure.

        Raises:
            UnavailableError: the audit topic has no broker now.
            MemqError: the broker failed until the deadline.
        """
        topic = await self._cluster.topic(AUDIT_TOPIC, refresh=refresh, timeout_s=timeout_s)
        write_partition = crc32c(self._id.encode()) % len(topic.hosts)
        host = topic.hosts[write_partition]
        if not host:
            raise UnavailableError(f"{AUDIT_TOPIC}/{write_partition} has no broker now; retry")
        now_us = self._cluster.runtime.wall_us()
        rows = encode_records(
            [report_key(report) for report, _ in reports],
            [value for _, value in reports],
            None,
            [now_us] * len(reports),
        )
        header = Write(
            topic=AUDIT_TOPIC,
            write_partition=write_partition,
            producer_id=self._id,
            epoch=0,
            sequence=self._sequence,
            first_unsettled=self._sequence,
            acks=_ACKS_ALL,
            schema_id=topic.schema_id,
            records=len(reports),
            min_timestamp_us=now_us,
            max_timestamp_us=now_us,
        )
        self._sequence += 1
        body = encode_message(rows)
        await self._cluster.call(host, header, body, body_crc=crc32c(body), timeout_s=timeout_s)
