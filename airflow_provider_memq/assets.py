"""Topics as assets, `memq://<host:port or cluster>/<topic>`, and as OpenLineage datasets.

The authority names a cluster: the address of a broker that everybody uses, or a name. It is not
asked: it only has to be the same wherever the topic is meant. Airflow calls `sanitize_uri` for
every such URI, DAGs call `create_asset`, and lineage `convert_asset_to_openlineage`.

An operator says which exact ranges of a topic it read with `range_lineage`, in its
`get_openlineage_facets_on_complete`. The package `apache-airflow-providers-openlineage` is needed
there and nowhere else.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.sdk import Asset, AssetWatcher

from airflow_provider_memq.ranges import RangeRow, to_row
from airflow_provider_memq.settings import DEFAULT_CONN_ID

if TYPE_CHECKING:
    from collections.abc import Sequence
    from urllib.parse import SplitResult

    from airflow.providers.common.compat.openlineage.facet import Dataset, InputDataset
    from airflow.providers.openlineage.extractors import OperatorLineage

    from memq.core.ranges import OffsetRange

SCHEME = "memq"
RANGES_FACET = "memq_ranges"
_CLUSTER = re.compile(r"[a-z0-9._-]+(:\d{1,5})?|\[[0-9a-f:]+\](:\d{1,5})?")
_TOPIC = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")  # as memq.core.topic has it


def asset_uri(cluster: str, topic: str) -> str:
    """The URI of a topic.

    Args:
        cluster: `host:port` of a broker, or a name of the cluster.
        topic: the topic.

    Raises:
        ValueError: it cannot be the URI of a topic.
    """
    return sanitize_uri(urlsplit(f"{SCHEME}://{cluster}/{topic}")).geturl()


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """A URI in its one form: the cluster in lower case.

    Raises:
        ValueError: it is not the URI of a topic; the message says why.
    """
    shape = f"{SCHEME}://<host:port or cluster>/<topic>"
    if "@" in uri.netloc:
        raise ValueError(f"URI must not hold credentials; write it like {shape}")
    if uri.query or uri.fragment:
        raise ValueError(f"URI {uri.geturl()} must end with the topic; write it like {shape}")
    cluster = uri.netloc.lower()
    if not _CLUSTER.fullmatch(cluster):
        raise ValueError(f"URI {uri.geturl()} names no cluster; write it like {shape}")
    if not _TOPIC.fullmatch(uri.path.removeprefix("/")):
        raise ValueError(
            f"URI {uri.geturl()} names no topic: 1 to 200 of letters, digits, '.', '_' and '-'; "
            f"write it like {shape}"
        )
    return uri._replace(netloc=cluster)


def create_asset(
    *,
    cluster: str,
    topic: str,
    name: str | None = None,
    group: str = "asset",
    extra: dict[str, Any] | None = None,
) -> Asset:
    """A topic as an asset.

    Args:
        cluster: `host:port` of a broker, or a name of the cluster.
        topic: the topic.
        name: of the asset; the URI when it is not given.
        group: of the asset.
        extra: kept with the asset.

    Raises:
        ValueError: there is no such URI.
    """
    uri = asset_uri(cluster, topic)
    return Asset(name=name or uri, uri=uri, group=group, extra=extra or {})


def watched_asset(
    *,
    cluster: str,
    topic: str,
    name: str | None = None,
    memq_conn_id: str = DEFAULT_CONN_ID,
    **watch: Any,
) -> Asset:
    """A topic as an asset that wakes DAGs scheduled on it when something was published.

    Args:
        cluster: `host:port` of a broker, or a name of the cluster.
        topic: the topic.
        name: of the asset; the URI when it is not given.
        memq_conn_id: connection to the brokers.
        **watch: more arguments of `MemqWatchTrigger`, such as `poll_interval`.

    Raises:
        ValueError: there is no such URI.
    """
    from airflow_provider_memq.triggers.watch import MemqWatchTrigger  # noqa: PLC0415 - if wanted

    uri = asset_uri(cluster, topic)
    name = name or uri
    # Its own name in the trigger: Airflow runs equal triggers as one, and gives that no state.
    trigger = MemqWatchTrigger(topic=topic, memq_conn_id=memq_conn_id, watch_name=name, **watch)
    return Asset(name=name, uri=uri, watchers=[AssetWatcher(name="memq", trigger=trigger)])


# -- lineage --------------------------------------------------------------------------------


def convert_asset_to_openlineage(asset: Asset, lineage_context: object) -> Dataset:  # noqa: ARG001
    """The OpenLineage dataset of a topic's asset."""
    uri = urlsplit(asset.uri)
    return topic_dataset(uri.netloc, uri.path.removeprefix("/"))


def topic_dataset(cluster: str, topic: str) -> Dataset:
    """The dataset of a topic: namespace `memq://<cluster>`, name of the topic.

    Args:
        cluster: `host:port` of a broker, or a name of the cluster.
        topic: the topic.
    """
    from airflow.providers.common.compat.openlineage.facet import Dataset  # noqa: PLC0415

    return Dataset(namespace=f"memq://{cluster}", name=topic)


def input_dataset(cluster: str, topic: str, ranges: Sequence[OffsetRange]) -> InputDataset:
    """A topic as the input of a run, with the exact ranges that were read."""
    from airflow.providers.common.compat.openlineage.facet import InputDataset  # noqa: PLC0415

    facet = _ranges_facet()(ranges=[to_row(each) for each in ranges])
    return InputDataset(
        namespace=f"memq://{cluster}", name=topic, inputFacets={RANGES_FACET: facet}
    )


def range_lineage(
    cluster: str, topic: str, ranges: Sequence[OffsetRange], *, output: str | None = None
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

        ranges: list[RangeRow]

        @staticmethod
        def _get_schema() -> str:
            return "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/InputDatasetFacet"

    return MemqRangesInputDatasetFacet
