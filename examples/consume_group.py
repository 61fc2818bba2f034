"""Read as a member of a group: start it twice, and both share the partitions. Ctrl-C ends it."""

import contextlib

from memq import Consumer

with (
    contextlib.suppress(KeyboardInterrupt),
    Consumer(topic="clicks", group="reports", start="earliest") as consumer,
):
    for batch in consumer:
        for message in batch:
            print(message.key, message.value, message.headers, message.timestamp.isoformat())
        consumer.commit()  # after the work: what was not committed comes again after a crash
