"""What operators that run a range have of the mixin and of Airflow, and what a task notes."""

import pytest
from airflow.providers.amazon.aws.operators.emr import (
    EmrAddStepsOperator,
    EmrServerlessStartJobOperator,
)
from airflow.providers.amazon.aws.operators.glue import GlueJobOperator
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import AirflowException

from airflow_provider_memq.launch.aws_job import AwsRangeJobMixin, JobNote, _keep, _recall
from airflow_provider_memq.launch.range_job import RangeJobMixin, RangeRun, manifest_path
from airflow_provider_memq.operators.memq import (
    MemqEmrServerlessOperator,
    MemqEmrStepOperator,
    MemqGlueOperator,
    MemqSparkConnectOperator,
    MemqSparkSubmitOperator,
)
from airflow_provider_memq.planning.ranges import RangeContents
from memq.core.ranges import OffsetRange
from tests.integration.airflow.event_store import State

COMMON = {"topic": "clicks", "output_dir": "s3a://lake/clicks"}
PROGRAM = "s3://code/range_to_parquet.py"
OPERATORS = {
    MemqSparkSubmitOperator: (SparkSubmitOperator, {"application": PROGRAM}),
    MemqEmrServerlessOperator: (
        EmrServerlessStartJobOperator,
        {"application_id": "a", "execution_role_arn": "arn", "application": PROGRAM},
    ),
    MemqEmrStepOperator: (EmrAddStepsOperator, {"job_flow_id": "j", "application": PROGRAM}),
    MemqGlueOperator: (GlueJobOperator, {"job_name": "j", "script_location": PROGRAM}),
    MemqSparkConnectOperator: (BaseOperator, {"application": "/apps/range_to_parquet.py"}),
}


NOTE = JobNote(
    "told",
    "token",
    RangeRun(
        RangeContents(OffsetRange(0, 1, 3, "a" * 16), 2, 2, 2, 100, 2**64 - 1), "s3a://m.json", "e"
    ),
    "j",
)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda kind: kind.__name__)
def test_an_operator_has_all_of_both_its_parents(operator):
    """Templates, how they are shown, links and `default_args`; `expand` makes a task of each."""
    base, options = OPERATORS[operator]
    with DAG("d", schedule=None, default_args={**COMMON, "memq_conn_id": "other"}):
        task = operator(task_id="t", **options)
        mapped = operator.partial(task_id="m", **options).expand(range_key=["a", "b"])

    assert (task.topic, task.memq_conn_id) == ("clicks", "other")
    assert mapped.operator_class is operator
    assert set(operator.template_fields) >= {*base.template_fields, *RangeJobMixin.template_fields}
    assert all(hasattr(task, name) for name in operator.template_fields)
    assert operator.template_fields_renderers == base.template_fields_renderers
    links = {type(link) for link in operator.operator_extra_links}
    for parent in (base, RangeJobMixin):
        assert links >= {type(link) for link in parent.operator_extra_links}


AWS = [kind for kind in OPERATORS if issubclass(kind, AwsRangeJobMixin)]


@pytest.mark.parametrize("operator", AWS, ids=lambda kind: kind.__name__)
def test_a_deferred_job_that_failed_is_told_as_the_service_told_it(operator):
    """The error, which is also what a notifier says, names the job and the service's reason."""
    task = operator(task_id="t", **COMMON, **OPERATORS[operator][1])
    state = State()
    _keep(state, NOTE)
    event = {"status": "failure", "message": "job failed: FAILED - out of memory"}

    with pytest.raises(AirflowException, match=r"^job j: job failed: FAILED - out of memory$"):
        task.execute_complete({"task_state_store": state}, event)


def test_outputs_share_a_folder_of_manifests_and_no_manifest():
    """What is done in one output is not taken for done in another, however alike their names."""
    planned = OffsetRange(0, 1, 3, "a" * 16)
    outputs = [
        "lake.clicks",
        "prod:lake.clicks",
        "prod/lake.clicks",
        "/lake/clicks",
        "/lake-clicks",
    ]
    paths = [manifest_path("s3://m/", each, "clicks", planned) for each in outputs]

    end = "/topic=clicks/topic_id=aaaaaaaaaaaaaaaa/partition=0/000000000001-000000000003.json"
    assert paths[0] == f"s3://m/output=lake.clicks{end}"
    assert len(set(paths)) == len(outputs)
    assert manifest_path("s3://m", "/lake/clicks/", "clicks", planned) == paths[3]
    assert manifest_path("", "/lake/clicks/", "clicks", planned) == f"/lake/clicks/_manifests{end}"


@pytest.mark.parametrize("kept", ["{}", "not JSON", 5])
def test_a_note_that_makes_no_sense_is_passed_over(kept):
    """One of another version of the provider counts as none, and the range is run."""
    assert _recall(State(memq_range_job=kept)) is None
