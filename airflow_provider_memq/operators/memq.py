"""Every operator under the path that users know: `airflow_provider_memq.operators.memq`.

Each is loaded when it is first used: a DAG that only plans does not pay for Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_memq.operators.audit import MemqAuditOperator
    from airflow_provider_memq.operators.aws import (
        MemqEmrServerlessOperator,
        MemqEmrStepOperator,
        MemqGlueOperator,
    )
    from airflow_provider_memq.operators.backfill import MemqBackfillOperator
    from airflow_provider_memq.operators.gate import MemqQualityGateOperator
    from airflow_provider_memq.operators.plan import MemqPlanRangesOperator
    from airflow_provider_memq.operators.progress import MemqCommitOperator, MemqRetentionOperator
    from airflow_provider_memq.operators.spark import (
        MemqSparkConnectOperator,
        MemqSparkSubmitOperator,
    )
    from airflow_provider_memq.operators.window import MemqWindowRangesOperator

__all__ = [
    "MemqAuditOperator",
    "MemqBackfillOperator",
    "MemqCommitOperator",
    "MemqEmrServerlessOperator",
    "MemqEmrStepOperator",
    "MemqGlueOperator",
    "MemqPlanRangesOperator",
    "MemqQualityGateOperator",
    "MemqRetentionOperator",
    "MemqSparkConnectOperator",
    "MemqSparkSubmitOperator",
    "MemqWindowRangesOperator",
]

_MODULES = {
    "MemqAuditOperator": "audit",
    "MemqBackfillOperator": "backfill",
    "MemqCommitOperator": "progress",
    "MemqEmrServerlessOperator": "aws",
    "MemqEmrStepOperator": "aws",
    "MemqGlueOperator": "aws",
    "MemqPlanRangesOperator": "plan",
    "MemqQualityGateOperator": "gate",
    "MemqRetentionOperator": "progress",
    "MemqSparkConnectOperator": "spark",
    "MemqSparkSubmitOperator": "spark",
    "MemqWindowRangesOperator": "window",
}
"""Where each operator stands."""


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"airflow_provider_memq.operators.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
