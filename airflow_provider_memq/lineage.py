"""What tasks say to OpenLineage, in names that others give the same data.

A graph of lineage joins where two jobs write the namespace and the name of a dataset alike, letter
by letter. So a folder is named here as the integration of Spark names it, and Airflow's own assets:

| folder | namespace | name |
| --- | --- | --- |
| `s3a://lake/clicks/`, `s3://…`, `s3n://…` | `s3://lake` | `clicks` |
| `gs://lake/clicks` | `gs://lake` | `clicks` |
| `abfss://box@account/clicks`, `abfs://…` | `abfss://box@account` | `clicks` |
| `hdfs://nn:8020/clicks` | `hdfs://nn:8020` | `/clicks` |
| `/data/clicks`, `file:///data/clicks` | `file` | `/data/clicks` |

Parts `column=value` at the end of a name are left out, as there: a folder that is partitioned is
one dataset, whichever of its parts a job writes. An Iceberg table is named by its location. A topic
is `memq://<cluster>` and the topic, as its asset is; the cluster is called what the connection says
in its field `cluster`, for the addresses of brokers change.

The extra `openlineage` is needed when a function here is called, and nowhere else.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from airflow_provider_memq.extras import from_extra
from airflow_provider_memq.planning.ranges import RangeRow, to_row

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.providers.common.compat.openlineage.facet import (
        Dataset,
        InputDataset,
        OutputDataset,
    )
    from airflow.providers.openlineage.extractors import OperatorLineage

    from memq.core.ranges import OffsetRange

RANGES_FACET = "memq_ranges"
"""Facet of an input: which offsets were read, range by range."""

ASSERTIONS_FACET = "dataQualityAssertions"
STATISTICS_FACET = "outputStatistics"

# How Spark's integration writes the schemes that have several spellings.
_SCHEMES = {"s3a": "s3", "s3n": "s3", "abfs": "abfss", "wasb": "wasbs"}
_BUCKETS = ("s3", "gs", "abfss", "wasbs")  # where a name begins with no slash

_SCHEMA_URL = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/InputDatasetFacet"


def topic_dataset(cluster: str, topic: str) -> Dataset:
    """Return the dataset of a topic.

    Args:
        cluster: its name, or `host:port` of a broker.
        topic: the topic.
    """
    from airflow.providers.common.compat.openlineage.facet import Dataset  # noqa: PLC0415

    return Dataset(namespace=f"memq://{cluster}", name=topic)


def topic_read(
    cluster: str, topic: str, ranges: Sequence[OffsetRange], assertion: Any = None
) -> InputDataset:
    """Describe a topic as the input of a run.

    Args:
        cluster: its name, or `host:port` of a broker.
        topic: the topic.
        ranges: the exact offsets that the run is about; none for a run that is about none.
        assertion: what was found true or false of the topic, as `assertion` makes it.
    """
    from airflow.providers.common.compat.openlineage.facet import InputDataset  # noqa: PLC0415

    facets: dict[str, Any] = {}
    if ranges:
        facets[RANGES_FACET] = _ranges_facet()(ranges=[to_row(each) for each in ranges])
    if assertion is not None:
        facets[ASSERTIONS_FACET] = assertion
    return InputDataset(namespace=f"memq://{cluster}", name=topic, inputFacets=facets)


def assertion(name: str, *, success: bool, actual: str) -> Any:
    """Make a facet of quality with one assertion.

    Args:
        name: what is asserted, such as "audit".
        success: it holds.
        actual: what was found, in words.
    """
    from openlineage.client.generated.data_quality_assertions_dataset import (  # noqa: PLC0415
        Assertion,
        DataQualityAssertionsDatasetFacet,
    )

    found = Assertion(assertion=name, success=success, actual=actual)
    return DataQualityAssertionsDatasetFacet(assertions=[found])


def folder_written(folder: str, records: int | None = None) -> OutputDataset:
    """Describe a folder, or the location of a table, as the output of a run.

    Args:
        folder: a URI, or an absolute path.
        records: rows that the run wrote; None while that is not known.
    """
    from airflow.providers.common.compat.openlineage.facet import (  # noqa: PLC0415
        OutputDataset,
        OutputStatisticsOutputDatasetFacet,
    )

    facets: dict[str, Any] = {}
    if records is not None:
        facets[STATISTICS_FACET] = OutputStatisticsOutputDatasetFacet(rowCount=records)
    namespace, name = name_of_folder(folder)
    return OutputDataset(namespace=namespace, name=name, outputFacets=facets)


def range_lineage(
    cluster: str,
    topic: str,
    offsets: OffsetRange,
    *,
    output: str,
    manifest: Mapping[str, Any] | None = None,
) -> OperatorLineage[Any, Any]:
    """Describe the lineage of a task that has a program read one range.

    Args:
        cluster: name of it.
        topic: the topic.
        offsets: the range.
        output: what the program was told to write: a folder, or the name of a table.
        manifest: what it said at its end, as an XCom holds it; None before that. A table that only
            the catalog knows is no output before.
    """
    if manifest is not None:
        outputs = [folder_written(manifest["output"], manifest["records"])]
    else:
        outputs = [folder_written(output)] if "/" in output else []
    return lineage([topic_read(cluster, topic, [offsets])], outputs)


def lineage(
    inputs: Sequence[InputDataset], outputs: Sequence[OutputDataset] = ()
) -> OperatorLineage[Any, Any]:
    """Make what a task returns to the integration of Airflow."""
    with from_extra("openlineage"):
        from airflow.providers.openlineage.extractors import OperatorLineage  # noqa: PLC0415

    return OperatorLineage(inputs=list(inputs), outputs=list(outputs))


def name_of_folder(folder: str) -> tuple[str, str]:
    """Namespace and name of a folder, as the table above says.

    Args:
        folder: a URI, or an absolute path.
    """
    uri = urlsplit(folder if ":/" in folder else f"file://{folder}")
    scheme = _SCHEMES.get(uri.scheme, uri.scheme)
    path = _without_partitions(unquote(uri.path).strip("/"))
    if scheme in _BUCKETS:
        return f"{scheme}://{uri.netloc}", path or "/"
    if scheme == "file" or not uri.netloc:
        return scheme, f"/{path}"
    return f"{scheme}://{uri.netloc}", f"/{path}"


def _without_partitions(path: str) -> str:
    """Drop the parts `column=value` from the end of a path; its first part always stays."""
    parts = path.split("/")
    while len(parts) > 1 and "=" in parts[-1]:
        parts.pop()
    return "/".join(parts)


@cache
def _ranges_facet() -> Any:
    """Return the class of the facet; it needs the optional package."""
    import attrs  # noqa: PLC0415 - with the package
    from openlineage.client.generated.base import InputDatasetFacet  # noqa: PLC0415

    @attrs.define(kw_only=True)
    class MemqRangesInputDatasetFacet(InputDatasetFacet):  # type: ignore[misc, unused-ignore]
        """The offsets that were read, range by range."""

        ranges: list[RangeRow]

        @staticmethod
        def _get_schema() -> str:
            return _SCHEMA_URL

    return MemqRangesInputDatasetFacet
