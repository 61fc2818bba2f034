"""An audit of a day of many producers: `python -m benchmarks.audit --producers 50000`.

The day is written down as brokers and producers leave it: Batches of up to `BATCH_MESSAGES`
Messages for each write partition and round, and for each producer and round the report that a
steady one makes, about all write partitions. Of the objects of Messages only the index is written,
behind a hole; an audit that is not deep reads no more. Then `memq audit` judges the whole day.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from array import array
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow as pa

from memq import AdminClient
from memq.core.audit.reports import ProducedReport, encode_reports
from memq.core.checksum import crc32c
from memq.core.format.batch import BatchBuilder, ProducerRun
from memq.core.format.envelope import END_OF_STREAM
from memq.core.format.index import INDEX_SCHEMA, encode_footer
from memq.core.format.message import encode_message, encode_records
from memq.core.format.schema import DEFAULT_SCHEMA, serialize_schema
from memq.core.notification import NOTIFICATION_VERSION, Notification, encode_notification
from memq.core.queue import Publication
from memq.core.topic import AUDIT_TOPIC
from memq.core.units import iso_ms
from memq.queue.embedded.queue import EmbeddedQueue
from memq.storage.keys import BatchKey, object_key
from memq.storage.local import LocalStorage
from memq.testing.broker import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memq.client.admin import TopicInfo

Row = tuple[str, str, str]

TOPIC = "t"
WRITE_PARTITIONS = 8
DAY_S = 86_400
BATCH_MESSAGES = 10_000
MESSAGE_BYTES = 1_000
MESSAGE_REPORTS = 600  # in one Message of the audit topic, of up to 512 KiB
BATCH_REPORTS = 8  # such Messages in one Batch
SCHEMA = serialize_schema(DEFAULT_SCHEMA)


def run(producers: int = 5_000, every_s: int = 3_600, *, lose: bool = False) -> list[Row]:
    """The figures.

    Args:
        producers: how many there are.
        every_s: seconds between two Messages of one to the same write partition.
        lose: delete an object before a second audit.
    """
    with tempfile.TemporaryDirectory(prefix="memq-bench-") as name:
        data_dir = Path(name)
        with BrokerProcess(data_dir) as broker, AdminClient(broker.address) as admin:
            admin.create_topic(TOPIC, write_partitions=WRITE_PARTITIONS)
            topics = {each: admin.describe_topic(each) for each in (TOPIC, AUDIT_TOPIC)}
        begin_ms = time.time_ns() // 1_000_000 - (DAY_S + 7_200) * 1_000
        day = Day(data_dir, topics, begin_ms, producers, every_s)
        begun_s = time.perf_counter()
        asyncio.run(day.write())
        messages = producers * WRITE_PARTITIONS * (DAY_S // every_s)
        rows = [
            (
                f"a day of {producers:,} producers x {WRITE_PARTITIONS} write partitions, "
                f"a Message each {every_s} s",
                f"{messages:,} Messages in {day.batches:,} Batches; "
                f"{producers * (DAY_S // every_s):,} reports of {day.report_bytes / 1e9:.2f} GB",
                f"written in {time.perf_counter() - begun_s:.0f} s",
            )
        ]
        with BrokerProcess(data_dir, memory_bytes="256MiB") as broker:
            rows.append(audit(broker, begin_ms, "audited"))
            if lose:
                day.last_object.unlink()
                rows.append(audit(broker, begin_ms, "audited with an object gone"))
        return rows


def audit(broker: BrokerProcess, begin_ms: int, what: str) -> Row:
    """How long the audit of the day took, what it said, and its peak of memory."""
    window = ["--from", iso_ms(begin_ms - 1_000), "--to", iso_ms(begin_ms + (DAY_S + 60) * 1_000)]
    command = [sys.executable, "-m", "memq", "audit", TOPIC, "--bootstrap", broker.address, *window]
    begun_s = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        peak_kb, waited = 0, (0, 0, None)
        while not waited[0]:  # the usage's own peak begins with what this process has
            told = Path(f"/proc/{process.pid}/status").read_text()
            peak_kb = max([peak_kb, *map(int, re.findall(r"VmHWM:\s*(\d+) kB", told))])
            time.sleep(0.05)
            waited = os.wait4(process.pid, os.WNOHANG)
        _, status, usage = waited
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - begun_s
        output.seek(0)
        *_, before, last = [b"", *output.read().splitlines()]
    figure = f"{seconds:.0f} s ({usage.ru_utime + usage.ru_stime:.0f} s of CPU), "
    figure += f"{peak_kb / 1024:.0f} MiB at its peak"
    return what, figure, f"exit code {process.returncode}: {before.decode()}; {last.decode()}"


class Day:
    """What is stored of a day.

    Attributes:
        batches: of Messages.
        report_bytes: JSON of the reports.
        names: of the producers.
        last_object: of the last Batch of Messages.
    """

    def __init__(
        self,
        data_dir: Path,
        topics: dict[str, TopicInfo],
        begin_ms: int,
        producers: int,
        every_s: int,
    ) -> None:
        self.batches = self.report_bytes = 0
        self.last_object = data_dir
        self._topics = topics
        self._storage = LocalStorage(data_dir / "objects")
        self._data_dir = data_dir
        self._begin_ms = begin_ms
        self.names = [f"{number:032x}" for number in range(producers)]
        self._every_s = every_s
        self._ids = 0

    async def write(self) -> None:
        """Write all rounds."""
        queue = EmbeddedQueue(self._data_dir / "queue")
        queues = {each.partition(".")[0]: each for each in await queue.topics()}
        write_partitions = range(self._topics[TOPIC].config.write_partitions)
        await queue.fence(queues[TOPIC], *write_partitions)
        await queue.fence(queues[AUDIT_TOPIC], 0)
        for number in range(DAY_S // self._every_s):
            at_ms = self._begin_ms + number * self._every_s * 1_000
            running_ms = at_ms - self._begin_ms
            for write_partition in write_partitions:
                found = [
                    Publication(write_partition % len(self._partitions()), payload, at_ms)
                    for payload in self._batches_of(write_partition, number, at_ms)
                ]
                await queue.publish(queues[TOPIC], write_partition, found)
            reports = [
                Publication(0, payload, at_ms + 15_000, running_ms)
                for payload in self._reports(number, at_ms)
            ]  # the broker goes on from the latest running time: all else is older than its windows
            await queue.publish(queues[AUDIT_TOPIC], 0, reports)
        await queue.close()

    def _partitions(self) -> range:
        return range(self._topics[TOPIC].config.read_partitions)

    def _key(self, topic: str, write_partition: int, at_ms: int) -> tuple[BatchKey, Path]:
        self._ids += 1
        key = BatchKey(
            "memq", topic, self._topics[topic].topic_id, write_partition, at_ms,
            f"{self._ids:032x}",
        )  # fmt: skip
        path = Path(urlsplit(self._storage.uri(object_key(key))).path)
        path.parent.mkdir(parents=True, exist_ok=True)
        return key, path

    def _batches_of(self, write_partition: int, number: int, at_ms: int) -> Iterator[bytes]:
        """The notifications of a round in one write partition; their objects are written."""
        for first in range(0, len(self.names), BATCH_MESSAGES):
            names = self.names[first : first + BATCH_MESSAGES]
            key, path = self._key(TOPIC, write_partition, at_ms)
            index = _index(key, names, number)
            holes = 1_024 + len(names) * MESSAGE_BYTES
            with path.open("wb") as file:
                file.seek(holes)
                file.write(index + encode_footer(index))
                size = file.tell()
            self.batches += 1
            self.last_object = path
            crc = crc_of(number)
            runs = [ProducerRun(name, 0, number, number, 10, crc) for name in names]
            yield self._notification(key, size, holes, runs)

    def _notification(
        self, key: BatchKey, size: int, index_offset: int, runs: list[ProducerRun]
    ) -> bytes:
        return encode_notification(
            Notification(
                version=NOTIFICATION_VERSION,
                topic=key.topic,
                topic_id=key.topic_id,
                write_partition=key.write_partition,
                batch_id=key.batch_id,
                uri=self._storage.uri(object_key(key)),
                size_bytes=size,
                index_offset=index_offset,
                messages=len(runs),
                records=sum(run.records for run in runs),
                min_timestamp_us=key.sealed_ms * 1_000,
                max_timestamp_us=key.sealed_ms * 1_000,
                producers=runs,
                schema_id="x",
                broker_id="b",
                sealed_ms=key.sealed_ms,
                stored_through_ms=key.sealed_ms,
            )
        )

    def _reports(self, number: int, at_ms: int) -> Iterator[bytes]:
        """The notifications of the reports of a round; their objects are written."""
        step = MESSAGE_REPORTS * BATCH_REPORTS
        for first in range(0, len(self.names), step):
            key, path = self._key(AUDIT_TOPIC, 0, at_ms + 15_000)
            builder = BatchBuilder(
                SCHEMA, batch_id=key.batch_id, topic=AUDIT_TOPIC, write_partition=0
            )
            names = self.names[first : first + step]
            for at in range(0, len(names), MESSAGE_REPORTS):
                values = self._values(names[at : at + MESSAGE_REPORTS], number, at_ms)
                self.report_bytes += sum(map(len, values))
                keys = [TOPIC.encode()] * len(values)
                body = encode_message(
                    encode_records(keys, values, None, [at_ms * 1_000] * len(values))
                ).to_pybytes()
                builder.add(
                    body,
                    producer_id=f"audit-{first + at}",
                    epoch=0,
                    sequence=number,
                    records=len(values),
                    min_timestamp_us=at_ms * 1_000,
                    max_timestamp_us=at_ms * 1_000,
                    crc32c=crc32c(body),
                )
            sealed = builder.seal()
            path.write_bytes(b"".join(map(bytes, sealed.buffers)))
            yield self._notification(key, sealed.size_bytes, sealed.index_offset, sealed.producers)

    def _values(self, names: list[str], number: int, at_ms: int) -> list[bytes]:
        """What each of some producers reports of a round."""
        reports = [
            ProducedReport(
                version=1,
                topic=TOPIC,
                write_partition=write_partition,
                producer_id="the-producer",
                epoch=0,
                first=number,
                last=number,
                records=10,
                size_bytes=MESSAGE_BYTES,
                crc_sum=crc_of(number),
                failed=[],
                window_start_ms=at_ms - self._every_s * 1_000,
                window_end_ms=at_ms + 15_000,
                topic_id=self._topics[TOPIC].topic_id,
                client="python",
            )
            for write_partition in range(self._topics[TOPIC].config.write_partitions)
        ]
        ((_, value),) = encode_reports(reports)
        return [value.replace(b"the-producer", name.encode()) for name in names]


def crc_of(number: int) -> int:
    """That of a Message."""
    return (number * 2_654_435_761 + 99) % 2**32


def _index(key: BatchKey, names: list[str], number: int) -> bytes:
    """The index of a Batch with a Message of each of some producers."""
    many = len(names)

    def column(values: Any) -> pa.Array:
        return pa.Array.from_buffers(pa.int64(), many, [None, pa.py_buffer(array("q", values))])

    columns = [
        pa.array(names, pa.utf8()),
        column([0] * many),
        column([number] * many),
        column(range(1_024, 1_024 + many * MESSAGE_BYTES, MESSAGE_BYTES)),
        column([MESSAGE_BYTES] * many),
        column([10] * many),
        column([key.sealed_ms * 1_000] * many),
        column([key.sealed_ms * 1_000] * many),
        pa.array([crc_of(number)] * many, pa.uint32()),
    ]
    metadata = {
        "memq.format_version": "1",
        "memq.batch_id": key.batch_id,
        "memq.topic": key.topic,
        "memq.write_partition": str(key.write_partition),
        "memq.schema_crc32c": "00000000",
    }
    schema = INDEX_SCHEMA.with_metadata(metadata)
    batch = pa.record_batch(columns, schema=schema)
    return b"".join((schema.serialize(), batch.serialize(), END_OF_STREAM))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--producers", type=int, default=50_000)
    parser.add_argument("--every", type=int, default=3_600, help="seconds between two Messages")
    parser.add_argument("--lose", action="store_true", help="audit again with an object gone")
    given = parser.parse_args()
    with suppress(KeyboardInterrupt):
        for row in run(given.producers, given.every, lose=given.lose):
            print(*row, sep="\n    ", flush=True)
