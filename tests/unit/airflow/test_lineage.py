"""What tasks say to OpenLineage."""

import pytest

from airflow_provider_memq.lineage import (
    assertion,
    folder_written,
    lineage,
    name_of_folder,
    range_lineage,
    topic_read,
)
from memq.core.ranges import OffsetRange

FOLDERS = {
    "/data/out": ("file", "/data/out"),
    "/": ("file", "/"),
    "file:/data/out": ("file", "/data/out"),
    "file:///data/out/": ("file", "/data/out"),
    "file://host/out": ("file", "/out"),
    "s3://bucket/key/part": ("s3://bucket", "key/part"),
    "s3a://bucket//a%20b/": ("s3://bucket", "a b"),
    "s3n://bucket": ("s3://bucket", "/"),
    "gs://bucket/a/b/": ("gs://bucket", "a/b"),
    "hdfs://nn:8020/a/b/": ("hdfs://nn:8020", "/a/b"),
    "hdfs:///a/b": ("hdfs", "/a/b"),
    "abfs://box@account/a": ("abfss://box@account", "a"),
    "abfss://box@account.dfs/a/": ("abfss://box@account.dfs", "a"),
    "wasb://box@account/a": ("wasbs://box@account", "a"),
    "dbfs:/a/b": ("dbfs", "/a/b"),
    "viewfs://all/a": ("viewfs://all", "/a"),
}
"""Folders, and what Spark's integration calls them."""

PARTITIONED = {
    "s3a://lake/out/memq_topic=clicks/memq_partition=0": ("s3://lake", "out"),
    "/out/day=1/part": ("file", "/out/day=1/part"),
    "/out=1": ("file", "/out=1"),
}


@pytest.mark.parametrize(("folder", "name"), (FOLDERS | PARTITIONED).items())
def test_names_of_folders(folder, name):
    """A folder is called what Spark calls it, without the partitions at its end."""
    assert name_of_folder(folder) == name


def test_a_range_that_was_written():
    """Where the manifest says that the rows are is what was written, with their number."""
    manifest = {"output": "file:///lake/db/clicks", "records": 7}
    told = range_lineage(
        "prod", "clicks", OffsetRange(0, 0, 1), output="db.clicks", manifest=manifest
    )

    (target,) = told.outputs
    assert (target.namespace, target.name) == ("file", "/lake/db/clicks")
    assert target.outputFacets["outputStatistics"].rowCount == 7


def test_what_was_found_stands_with_the_topic():
    """An audit is an assertion about the topic, in the facet that others use for it."""
    found = assertion("audit", success=False, actual="not clean")
    told = lineage([topic_read("prod", "clicks", [], found)], [folder_written("/audits/a.csv")])

    (source,), (target,) = told.inputs, told.outputs
    (each,) = source.inputFacets["dataQualityAssertions"].assertions
    assert (each.assertion, each.success, each.actual) == ("audit", False, "not clean")
    assert "memq_ranges" not in source.inputFacets
    assert target.name == "/audits/a.csv"
