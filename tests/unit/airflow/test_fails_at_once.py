"""An error that no retry mends fails a task of ours at once; all others are Airflow's to retry."""

from __future__ import annotations

import pytest
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_memq.base import FailsAtOnce
from airflow_provider_memq.launch.range_job import RangeJobMixin
from airflow_provider_memq.operators import memq as operators
from airflow_provider_memq.range_assets import ranges_asset
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
RANGES = ranges_asset("clicks")


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


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("MemqPlanRangesOperator", {"ranges": RANGES, "max_bytes": "many"}),
        ("MemqBackfillOperator", {"ranges": RANGES, "output_dir": "/o", "preview": "perhaps"}),
        ("MemqSparkSubmitOperator", {"application": "a.py", "output_dir": "/o", "mode": "odd"}),
        ("MemqQualityGateOperator", {"manifest": "/m", "range_key": "k"}),
        ("MemqWindowRangesOperator", {"start": "yesterday"}),
        ("MemqAuditOperator", {"last": "2h", "start": "2026-01-01T00:00:00Z"}),
        ("MemqRetentionOperator", {"ranges": RANGES, "memq_conn_id": "memq_wrong"}),
    ],
)
def test_a_wrong_argument_or_connection_uses_up_no_retries(name, options, monkeypatch):
    """Of any operator: the message says what is wrong, once."""
    monkeypatch.setenv("AIRFLOW_CONN_MEMQ_WRONG", "memq://user@127.0.0.1:1")  # a login
    task = getattr(operators, name)(task_id="t", topic="clicks", **options)

    class Nothing(dict):
        def __missing__(self, key):
            return self

        def ascending(self, _):
            return self

        def limit(self, _):
            return self

    with pytest.raises(ConfigError) as raised:
        task.execute(Nothing())
    assert isinstance(raised.value, AirflowFailException)
