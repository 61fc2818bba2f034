"""An error that no retry mends fails a task of ours at once; all others are Airflow's to retry."""

import pytest
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_memq.base import FailsAtOnce
from airflow_provider_memq.launch.range_job import RangeJobMixin
from airflow_provider_memq.operators import memq as operators
from memq.errors import (
    ConfigError,
    DataLossError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    RequestTimeoutError,
    SchemaMismatchError,
    StorageError,
    TopicRecreatedError,
    UnauthorizedError,
    UnavailableError,
    UnknownTopicError,
)

PERMANENT = [
    ConfigError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    SchemaMismatchError,
    TopicRecreatedError,
    UnauthorizedError,
    UnknownTopicError,
]
PASSING = [DataLossError, RequestTimeoutError, StorageError, UnavailableError]


class Launching(BaseOperator):
    """An operator of Airflow that launches something, and fails."""

    error: Exception

    def execute(self, context):
        raise self.error


class Mine(RangeJobMixin, Launching):
    """A range operator as users make them."""

    def execute(self, context):
        return super().execute(context)

    def execute_complete(self, context, event):
        raise self.error


@pytest.mark.parametrize("kind", [*PERMANENT, *PASSING])
@pytest.mark.parametrize("method", ["execute", "execute_complete"])
def test_what_no_retry_mends_is_not_tried_again(kind, method):
    """Airflow sees that it is final; whoever catches errors of its class catches it as before."""
    task = Mine(task_id="t", topic="clicks", output_dir="/o", range_key="x")
    task.error = kind("it is wrong")

    with pytest.raises(kind, match=r"^it is wrong$") as raised:
        getattr(task, method)({}, **({"event": {}} if method == "execute_complete" else {}))

    assert isinstance(raised.value, AirflowFailException) is (kind in PERMANENT)
    assert type(raised.value).__name__ == kind.__name__


@pytest.mark.parametrize("name", operators.__all__)
def test_every_operator_fails_at_once(name):
    """Each of the provider, and what they do when they are resumed."""
    kind = getattr(operators, name)

    assert issubclass(kind, FailsAtOnce)
    for method in ("execute", "execute_complete", "resume_execution", "pre_execute"):
        found = getattr(kind, method, None)
        if found is not None and found.__module__.startswith("airflow_provider_memq"):
            assert found.__wrapped__ is not None
