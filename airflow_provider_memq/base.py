"""What all operators of one topic have in common."""

from __future__ import annotations

import time
from functools import wraps
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_memq.hooks.memq import MemqHook
from airflow_provider_memq.lineage import lineage, topic_read
from airflow_provider_memq.links import MemqTopicLink
from airflow_provider_memq.settings import DEFAULT_CONN_ID
from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow.sdk import BaseOperatorLink


RANGE_OF_RUN = "{{ dag_run.partition_key }}"
"""The range of a DAG run that is made for a planned range."""

_NOT_TAKEN = ("self", "kwargs", "__class__")  # in a constructor, besides its own arguments


class TakesArguments:
    """Makes the arguments of a constructor attributes of the same names."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Give an argument, which `_take` has made an attribute."""

    def _take(self, arguments: Mapping[str, Any]) -> None:
        """Make the arguments of a constructor attributes, which Airflow renders by their names.

        Args:
            arguments: `locals()`, in the first line of the constructor.
        """
        own = {name: value for name, value in arguments.items() if name not in _NOT_TAKEN}
        vars(self).update(own)


class FailsAtOnce(BaseOperator, TakesArguments):
    """Base of all operators: what no retry mends fails the task at once, whatever its `retries`.

    Such an error is still of its own class, and an `AirflowFailException` as well. A connection
    that Airflow does not find is tried again: it says the same of a secrets backend that is away.

    Attributes:
        permanent: codes of errors that no retry mends.
    """

    permanent = frozenset(("config", "invalid_request", "schema_mismatch", "unauthorized")).union(
        ("offset_out_of_range", "topic_recreated", "unknown_topic")
    )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        names = {"pre_execute", "execute", "execute_complete", "resume_execution"} & {*vars(cls)}
        for name in names:
            setattr(cls, name, _failing_at_once(vars(cls)[name]))


def _failing_at_once(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def failing(self: FailsAtOnce, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except MemqError as exc:
            if exc.code not in self.permanent or isinstance(exc, AirflowFailException):
                raise
            kind = type(exc)  # and one that Airflow does not try again
            final = type(kind.__name__, (AirflowFailException, kind), {"__module__": __name__})
            raise final(*exc.args) from exc

    return failing


class MemqTopicOperator(FailsAtOnce):
    """Base of the operators that ask the brokers about one topic.

    Every argument of an operator is a template, but for assets and `deferrable`.

    Args:
        topic: the topic (templated).
        memq_conn_id: connection to the brokers (templated).
    """

    template_fields: Sequence[str] = ("topic", "memq_conn_id")
    operator_extra_links: tuple[BaseOperatorLink, ...] = (MemqTopicLink(),)
    ui_color = "#d7e8fa"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = signature(cls.__init__).parameters.values()
        names = [
            each.name
            for each in own
            if each.kind is Parameter.KEYWORD_ONLY
            and each.name != "deferrable"
            and "Asset" not in str(each.annotation)
        ]
        cls.template_fields = (*MemqTopicOperator.template_fields, *names)

    def __init__(self, *, topic: str, memq_conn_id: str = DEFAULT_CONN_ID, **kwargs: Any) -> None:
        self._take(locals())
        super().__init__(**kwargs)

    @property
    def hook(self) -> MemqHook:
        """Of the connection."""
        return MemqHook(self.memq_conn_id)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ARG002
        """Report the topic that was asked about."""
        return lineage([topic_read(self.hook.settings().cluster, self.topic, [])])


def now_ms() -> int:
    """Milliseconds since 1970 UTC."""
    return int(time.time() * 1000)
