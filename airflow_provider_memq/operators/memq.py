"""Every operator under the path that users know: `airflow_provider_memq.operators.memq`.

Each is loaded when it is first used: a DAG that only plans does not pay for Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_memq.operators.audit import MemqAuditOperator
    from airflow_provider_memq.operators.gate import MemqQualityGateOperator
