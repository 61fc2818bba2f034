"""A job that may run twice: with a name of its own, what is stored already is not stored again."""

from memq import Producer

SCORES = {b"ann": 7, b"bob": 3, b"eve": 9}
NOON = 1_751_284_800_000_000  # microseconds since 1970: every run gives the same times

for run in ("first", "second"):
    with Producer(topic="scores", producer_id="scores-2025-06-30") as producer:
        for name, score in SCORES.items():
            delivery = producer.write(b"%d" % score, key=name, timestamp=NOON)
    stored = delivery.result()
    print(f"{run} run: offset {stored.offset}, stored before: {stored.duplicate}")
