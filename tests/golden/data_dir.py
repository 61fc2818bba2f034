"""A whole data directory of a broker, as some version left it: an archive in `files/`.

It has objects with Batches, files of the embedded queue, `times.json`, `topics/*.json`,
`features.json`, and offsets of a group. Nothing of it is the same twice, so it is only read.
"""

import shutil
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from memq import AdminClient, Producer
from memq.testing.broker import BrokerProcess
from tests.golden.formats import FILES

ARCHIVE = "data-dir-{}.tar.gz"
PLACE = Path(tempfile.gettempdir()) / "memq-golden"
"""Where it is made: notifications name it."""

KEPT, READ = 40, 15
"""Records of each topic, and Batches of `plain` that the group has committed."""

TYPED = pa.schema([("id", pa.int64()), ("word", pa.string())])


def rows(first: int, count: int) -> pa.Table:
    """Rows of the typed topic."""
    numbers = range(first, first + count)
    return pa.table({"id": list(numbers), "word": [f"w{n}" for n in numbers]}, schema=TYPED)


def sent(number: int) -> dict[str, Any]:
    """A record of `plain`."""
    time = datetime.fromtimestamp(number + 1, UTC)
    return {"key": b"k%d" % number, "value": b"v%d" % number, "timestamp": time}


def make_archive(number: int) -> Path:
    """Let a broker fill a directory; put what it leaves into the next archive."""
    shutil.rmtree(PLACE, ignore_errors=True)
    with BrokerProcess(PLACE) as process, AdminClient(process.address) as admin:
        admin.create_topic("plain", batch_age="10ms", audited=False, retention="365d")
        admin.create_topic(
            "typed", schema=TYPED, batch_age="10ms", audited=False, retention="365d",
            write_partitions=2, read_partitions=2, ordering="producer",
        )  # fmt: skip
        with Producer(process.address, topic="plain", producer_id="golden") as producer:
            for record in range(KEPT):
                producer.write(**sent(record))
                producer.flush()
        with Producer(process.address, topic="typed") as producer:
            for first in range(0, KEPT, 10):
                producer.write_table(rows(first, 10))
                producer.flush()
        admin.reset_offsets("readers", "plain", {0: READ})
        process.terminate()
    path = FILES / ARCHIVE.format(number)
    with tarfile.open(path, "w:gz") as made:
        made.add(PLACE, "data", filter=_of_nobody)
    return path


def _of_nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
