"""A range at each service of AWS, by tasks that leave their worker while the job runs."""

from __future__ import annotations

import os

from airflow.sdk import DAG

from tests.system.airflow.aws_tasks import operator

APPLICATION, CLUSTER = os.environ["AWS_APPLICATION"], os.environ["AWS_CLUSTER"]

with DAG("aws", schedule=None):
    for launcher in ("EmrServerless", "EmrStep", "Glue"):
        operator(
            launcher,
            APPLICATION,
            CLUSTER,
            f"{os.environ['AWS_OUTPUT']}/{launcher}",
            task_id=launcher,
            deferrable=True,
        )
