"""Jobs that put a topic into files and tables below a folder."""

from memq.core.ranges import OffsetRange
from memq.spark.compaction import Compaction
from memq.spark.outputs import RangeJob
from tests.integration.tables.lake import catalog_options


def parquet_job(broker, topic, folder, start=0, end=1, **options):
    """A range of read partition 0, to files."""
    place = {"output": f"{folder}/out", "manifest": f"{folder}/{start}-{end}.json"}
    given = {"name": "test", "report": False, "bootstrap": broker.address} | place | options
    return RangeJob(topic=topic, range=OffsetRange(0, start, end), **given)


def iceberg_job(broker, topic, folder, start=0, end=1, *, catalog=(), **options):
    """A range of read partition 0, to a table in a catalog of this folder."""
    place = {"output": "local:lake.t", "manifest": f"{folder}/{start}-{end}.json"}
    place["catalog_options"] = catalog_options(folder) | dict(catalog)
    given = {"name": "test", "report": False, "bootstrap": broker.address} | place | options
    return RangeJob(topic=topic, range=OffsetRange(0, start, end), **given)


def compaction(broker, topic, folder, **options):
    """All of a topic, to files."""
    given = {"name": "test", "report": False, "bootstrap": broker.address} | options
    return Compaction(topic=topic, output=f"{folder}/lake", **given)
