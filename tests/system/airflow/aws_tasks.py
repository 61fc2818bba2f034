"""Tasks that run a range at AWS, as a DAG has them."""

from __future__ import annotations

from airflow_provider_memq.operators.memq import (
    MemqEmrServerlessOperator,
    MemqEmrStepOperator,
    MemqGlueOperator,
)
from airflow_provider_memq.ranges import range_key
from memq.core.ranges import OffsetRange
from tests.harness.airflow.rest import BACKSTOP_S

TOPIC = "clicks"
KEY = range_key(OffsetRange(0, 1, 3))
PROGRAM = "s3://code/range_to_parquet.py"
ACCOUNT = "123456789012"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/memq"
GLUE_JOB = "ranges"


def operator(launcher, application, cluster, out, **options):
    """A task of this launcher, as a DAG would have it."""
    common = {
        "task_id": "process",
        "topic": TOPIC,
        "range_key": KEY,
        "output_dir": str(out),
        "aws_conn_id": None,
    }
    if launcher == "EmrServerless":
        return MemqEmrServerlessOperator(
            application_id=application,
            execution_role_arn=ROLE,
            application=PROGRAM,
            spark_submit_parameters="--conf spark.executor.cores=2",
            waiter_delay=1,
            waiter_max_attempts=int(BACKSTOP_S),
            **common | options,
        )
    if launcher == "EmrStep":
        return MemqEmrStepOperator(
            job_flow_id=cluster,
            application=PROGRAM,
            spark_submit_args=["--deploy-mode", "cluster"],
            waiter_delay=1,
            waiter_max_attempts=int(BACKSTOP_S),
            **common | options,
        )
    return MemqGlueOperator(
        job_name=GLUE_JOB,
        script_location=PROGRAM,
        job_poll_interval=0.05,
        waiter_delay=1,
        **common | options,
    )
