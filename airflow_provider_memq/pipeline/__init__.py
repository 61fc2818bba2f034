"""`MemqPipeline`: the DAGs of one topic, or of many, from settings.

One file of DAGs for all topics of a cluster:

    from airflow_provider_memq.pipeline import MemqPipeline

    MemqPipeline.from_yaml("/etc/memq/topics.yaml").dags()

Nothing is asked of Airflow or of brokers while it is parsed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from airflow_provider_memq.notifications.memq import MemqNotifier
from airflow_provider_memq.pipeline import dags as topic_dags
from airflow_provider_memq.pipeline.settings import Source, read_yaml, settings_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from airflow.sdk import DAG

    from airflow_provider_memq.pipeline.settings import TopicSettings

_MAKERS = {
    "ranges": (topic_dags.plan_dag, topic_dags.process_dag),
    "hourly": (topic_dags.hourly_dag,),
    "audit": (topic_dags.audit_dag,),
    "backfill": (topic_dags.backfill_dag,),
    "retention": (topic_dags.retention_dag,),
}
"""By name, as in the setting `dags`."""


class MemqPipeline:
    """Makes the DAGs of topics: plan, process, hourly, audit, backfill and retention.

    Called in a file of Airflow's `dags` folder, its methods give Airflow the DAGs they make. DAGs
    of a topic given as one text have ids such as `memq_process_ranges`; of one in a list, or in a
    mapping, such as `memq_process_ranges.clicks`.

    Whenever a task fails, of an operator or a sensor, `MemqNotifier` logs what it was about as
    critical, and tells `notifiers`.

    Args:
        topics: a topic, some topics, or the settings of each by its name; or what a file says of
            them, which `from_yaml` reads.
        notifiers: notifiers of Airflow, or functions of a context.
        **settings: of all topics; `TopicSettings` has their meanings. A topic's own go before them.

    Raises:
        ConfigError: something is wrong; a line for each, with topic, setting and value.
    """

    def __init__(
        self,
        topics: str | Sequence[str] | Mapping[str, Mapping[str, Any] | None] | Source,
        *,
        notifiers: Sequence[Callable[[Any], object]] = (),
        **settings: Any,
    ) -> None:
        source = topics if isinstance(topics, Source) else Source("MemqPipeline", topics, settings)
        self.topics = settings_of(source)
        self.tell = MemqNotifier(notifiers=notifiers)

    @classmethod
    def from_yaml(
        cls, path: str | Path, *, notifiers: Sequence[Callable[[Any], object]] = ()
    ) -> Self:
        """Make the pipeline that a file describes, with `topic` or `topics`, and more settings.

        Args:
            path: of the file.
            notifiers: notifiers of Airflow, or functions of a context.

        Raises:
            ConfigError: it cannot be read, or something in it is wrong; a line for each, with
                file, topic, setting and value.
        """
        return cls(read_yaml(path), notifiers=notifiers)

    def __repr__(self) -> str:
        return f"<MemqPipeline of {len(self.topics)} topics>"

    def dags(self) -> list[DAG]:
        """Make all DAGs that the setting `dags` of each topic names."""
        return [
            dag
            for topic in self.topics
            for kind in topic.dags
            for dag in self._dags_of(topic, kind, None)
        ]

    def ranges(self, doc_md: str | None = None) -> list[DAG]:
        """`memq_plan_ranges` and `memq_process_ranges` of each topic."""
        return self._made("ranges", doc_md)

    def hourly(self, doc_md: str | None = None) -> list[DAG]:
        """`memq_hourly` of each topic."""
        return self._made("hourly", doc_md)

    def audit(self, doc_md: str | None = None) -> list[DAG]:
        """`memq_audit` of each topic."""
        return self._made("audit", doc_md)

    def backfill(self, doc_md: str | None = None) -> list[DAG]:
        """`memq_backfill` of each topic."""
        return self._made("backfill", doc_md)

    def retention(self, doc_md: str | None = None) -> list[DAG]:
        """`memq_retention` of each topic."""
        return self._made("retention", doc_md)

    def _made(self, kind: str, doc_md: str | None) -> list[DAG]:
        return [dag for topic in self.topics for dag in self._dags_of(topic, kind, doc_md)]

    def _dags_of(self, topic: TopicSettings, kind: str, doc_md: str | None) -> Iterator[DAG]:
        common = topic_dags.common_of(topic, self.tell, doc_md)
        return (make(topic, common) for make in _MAKERS[kind])
