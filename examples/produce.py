"""Write records with keys and headers, and see where they are stored."""

import json

from memq import Producer

with Producer(topic="clicks") as producer:
    deliveries = [
        producer.write(
            json.dumps({"page": f"/page/{number}"}).encode(),
            key=b"user-%d" % (number % 3),
            headers={"source": b"example"},
        )
        for number in range(10)
    ]
# Leaving the block has waited for all of them, and would have raised what failed.
last = deliveries[-1].result()
print(f"{len(deliveries)} records; the last is in partition {last.partition}, offset {last.offset}")
