"""A topic with what an audit of it needs: producers, jobs that report, and its stored objects."""

import asyncio
import itertools
from pathlib import Path
from urllib.parse import urlsplit

from memq import AdminClient, Producer
from memq.client.audit.audit import audit_topic
from memq.client.audit.reporter import report_consumed
from memq.client.cluster import Cluster
from memq.client.topic import TopicClient
from memq.core.audit.reports import ConsumedReport
from memq.core.notification import decode_notification

names = (f"name-{number}" for number in itertools.count())  # of topics and producers


class Topic:
    """A topic of its own, with what stands behind it."""

    def __init__(self, broker, **options):
        self.name, self.address = next(names), broker.address
        with AdminClient(self.address) as admin:
            admin.create_topic(self.name, **{"batch_age": "5ms"} | options)

    def produce(self, messages, records=3, **options):
        """Write Messages, each acked and in a Batch of its own; returns the producer's id.

        With an id of its own a producer cuts Messages just where they are waited for.
        """
        with Producer(
            self.address, topic=self.name, producer_id=next(names), **options
        ) as producer:
            for number in range(messages):
                for record in range(records):
                    delivery = producer.write(b"%d of %d" % (record, number))
                delivery.result(30)
            return producer.producer_id

    def audit(self, **options):
        return asyncio.run(audit_topic(self.address, self.name, **options))

    def ask(self, question):
        """The answer of a question to the topic's queue."""

        async def asking():
            cluster = Cluster(self.address)
            try:
                return await question(TopicClient(cluster, self.name))
            finally:
                await cluster.close()

        return asyncio.run(asking())

    def offsets(self):
        """Retained, of each read partition."""
        return self.ask(TopicClient.offsets)

    def notifications(self, partition=0, wait_ms=0):
        """Of a read partition, in order."""

        async def held(queue):
            start = (await queue.offsets())[partition].start
            return await queue.page({partition: start}, max_entries=500, max_wait_ms=wait_ms)

        return [decode_notification(entry.payload) for entry in self.ask(held).entries]

    def path(self, notification):
        """File of a Batch."""
        return Path(urlsplit(notification.uri).path)

    def paths(self):
        """Files of the Batches of read partition 0."""
        return list(map(self.path, self.notifications()))


def job_report(topic, start, end, /, **fields):
    """What a job says that read offsets of read partition 0 in full."""
    found = topic.notifications()[start:end]
    values = {
        "topic": topic.name,
        "consumer": "job",
        "partition": 0,
        "start": start,
        "end": end,
        "batches": len(found),
        "messages": sum(each.messages for each in found),
        "records": sum(each.records for each in found),
        "crc_sum": sum(run.crc_sum for each in found for run in each.producers),
        "window_start_ms": start,
        "window_end_ms": end,
    }
    return ConsumedReport(**(values | fields))


def report(topic, /, *ranges, **fields):
    """Report some ranges as a job."""
    report_consumed(topic.address, [job_report(topic, *each, **fields) for each in ranges])
