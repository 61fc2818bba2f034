"""OpenLineage: which topic, and which exact range of it, a task read.

An operator calls `range_lineage` in `get_openlineage_facets_on_complete`. The package
`apache-airflow-providers-openlineage` is needed there and nowhere else.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.providers.common.compat.openlineage.facet import Dataset, InputDataset
    from airflow.providers.openlineage.extractors import OperatorLineage

FACET = "memq_ranges"


class Range(NamedTuple):
    """Offsets of one read partition from `start` up to, not including, `end`."""

    partition: int
    start: int
    end: int


def topic_dataset(cluster: str, topic: str) -> Dataset:
    """The dataset of a topic: namespace `memq://<cluster>`, name of the topic.

    Args:
        cluster: `host:port` of a broker, or a name of the cluster.
        topic: the topic.
    """
    from airflow.providers.common.compat.openlineage.facet import Dataset  # noqa: PLC0415

    return Dataset(namespace=f"memq://{cluster}", name=topic)


def input_dataset(cluster: str, topic: str, ranges: Sequence[Range]) -> InputDataset:
    """A topic as the input of a run, with the exact ranges that were read."""
    from airflow.providers.common.compat.openlineage.facet import InputDataset  # noqa: PLC0415

    facet = _ranges_facet()(ranges=[each._asdict() for each in ranges])
    return InputDataset(namespace=f"memq://{cluster}", name=topic, inputFacets={FACET: facet})


def range_lineage(
    cluster: str, topic: str, ranges: Sequence[Range], *, output: str | None = None
) -> OperatorLineage[Any, Any]:
    """The lineage of a task that read ranges of a topic.

    Args:
        cluster: `host:port` of a broker, or a name of the cluster.
        topic: the topic.
        ranges: what was read.
        output: folder that was written: a URI such as `s3://bucket/key`, or an absolute path.
    """
    from airflow.providers.openlineage.extractors import OperatorLineage  # noqa: PLC0415

    outputs = [] if output is None else [_output_dataset(output)]
    return OperatorLineage(inputs=[input_dataset(cluster, topic, ranges)], outputs=outputs)


def _output_dataset(output: str) -> Dataset:
    from airflow.providers.common.compat.openlineage.facet import Dataset  # noqa: PLC0415

    scheme, separator, rest = output.partition("://")
    if not separator or scheme == "file":
        return Dataset(namespace="file", name=rest or output)
    bucket, _, key = rest.partition("/")
    return Dataset(namespace=f"{scheme}://{bucket}", name=key or "/")


@cache
def _ranges_facet() -> Any:
    """The class of the facet; it needs the optional package."""
    import attrs  # noqa: PLC0415 - with the package
    from openlineage.client.generated.base import InputDatasetFacet  # noqa: PLC0415

    @attrs.define(kw_only=True)
    class MemqRangesInputDatasetFacet(InputDatasetFacet):  # type: ignore[misc, unused-ignore]
        """The offsets that were read, range by range."""

        ranges: list[dict[str, int]]

        @staticmethod
        def _get_schema() -> str:
            return "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/InputDatasetFacet"

    return MemqRangesInputDatasetFacet
