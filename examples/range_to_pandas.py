"""Read exact offsets into pandas: the same rows whenever it runs.

Install pandas first: pip install pandas
"""

from memq import AdminClient, read_range

with AdminClient() as admin:
    for held in admin.offsets("clicks"):
        frame = read_range(
            topic="clicks",
            partition=held.partition,
            start=held.start,
            end=held.end,  # not included
            metadata=True,
        ).to_pandas()
        print(f"partition {held.partition}, offsets {held.start} to {held.end - 1}")
        print(frame.groupby("key")["offset"].count())
