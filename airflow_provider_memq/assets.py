"""Topics as assets, `memq://<host:port or cluster>/<topic>`, and as OpenLineage datasets.

The authority names a cluster: the address of a broker that everybody uses, or a name. It is not
asked: it only has to be the same wherever the topic is meant. Airflow calls `sanitize_uri` for
every such URI, DAGs call `create_asset`, and lineage `convert_asset_to_openlineage`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.sdk import Asset, AssetWatcher

from airflow_provider_memq.settings import CLUSTER, DEFAULT_CONN_ID

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from airflow.providers.common.compat.openlineage.facet import Dataset

SCHEME = "memq"
_TOPIC = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")  # as memq.core.topic has it


def asset_uri(cluster: str, topic: str) -> str:
    """Return the URI of a topic.

    Args:
        cluster: `host:port` of a broker, or a name of the cluster.
        topic: the topic.

    Raises:
        ValueError: it cannot be the URI of a topic.
    """
    return sanitize_uri(urlsplit(f"{SCHEME}://{cluster}/{topic}")).geturl()


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Return a URI in its one form: the cluster in lower case.

    Raises:
        ValueError: it is not the URI of a topic; the message says why.
    """
    cluster = uri.netloc.lower()
    named = CLUSTER.fullmatch(cluster) and _TOPIC.fullmatch(uri.path.removeprefix("/"))
    if not named or uri.query or uri.fragment:
        shown = f"{SCHEME}://…{uri.path}" if "@" in uri.netloc else uri.geturl()  # no credentials
        raise ValueError(
            f"URI {shown} names no topic; write it like {SCHEME}://<host:port or cluster>/<topic>"
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
    """Make an asset of a topic.

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
    """Make an asset of a topic that wakes DAGs scheduled on it when something was published.

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


def convert_asset_to_openlineage(asset: Asset, lineage_context: object) -> Dataset:  # noqa: ARG001
    """Return the OpenLineage dataset of a topic's asset."""
    from airflow_provider_memq.lineage import topic_dataset  # noqa: PLC0415 - needs a package

    uri = urlsplit(asset.uri)
    return topic_dataset(uri.netloc, uri.path.removeprefix("/"))
