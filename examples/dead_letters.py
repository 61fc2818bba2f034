"""Put records that cannot be processed aside, with the reason, and go on. Ctrl-C ends it."""

import contextlib
import json

from memq import Consumer, Producer

with (
    contextlib.suppress(KeyboardInterrupt),
    Consumer(topic="orders", group="billing", start="earliest") as consumer,
    Producer(topic="orders-dead") as dead,
):
    for batch in consumer:
        for message in batch:
            try:
                print("billed:", json.loads(message.value)["amount"])
            except (ValueError, KeyError, TypeError) as error:
                place = f"{message.topic} {message.partition}:{message.offset}"
                dead.write(
                    message.value,
                    key=message.key,
                    headers={"error": repr(error).encode(), "from": place.encode()},
                )
                print("put aside:", repr(error))
        dead.flush()  # nothing is committed before its dead letters are stored
        consumer.commit()
