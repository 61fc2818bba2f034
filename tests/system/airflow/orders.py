"""A topic `orders` beside that of the pipeline, whose ranges go into a table."""

import shutil
from contextlib import suppress
from pathlib import Path

from memq import AdminClient, Producer
from memq.errors import TopicExistsError
from memq.tables.iceberg import IcebergTable, open_table
from tests.harness.airflow.rest import WaitError, until
from tests.system.airflow.pipeline import Pipeline

TOPIC = "orders"
PLAN, TABLE = "orders_plan", "orders_table"
PAGE = f"topics/{TOPIC}/"


def prepare(folder: Path) -> dict[str, str]:
    """Put the DAGs into a pipeline's folder that is to be made; gives the environment they need."""
    (folder / "dags").mkdir()
    shutil.copy(Path(__file__).parent / "dags" / "orders.py", folder / "dags")
    (folder / "lake").mkdir()
    catalog = {
        f"PYICEBERG_CATALOG__DEFAULT__{name.upper()}": value
        for name, value in options(folder).items()
    }
    return {"ORDERS_FOLDER": str(folder), **catalog}


def options(folder: Path) -> dict[str, str]:
    """The catalog, as pyiceberg wants it."""
    return {
        "type": "sql",
        "uri": f"sqlite:///{folder}/lake/catalog.db",
        "warehouse": f"file://{folder}/lake/warehouse",
    }


def table(pipeline: Pipeline) -> IcebergTable:
    """The table of the ranges."""
    return open_table("lake.orders", options(pipeline.folder))


def publish(pipeline: Pipeline, batches: int) -> None:
    """Publish so many Batches."""
    with AdminClient(pipeline.broker.address) as admin, suppress(TopicExistsError):
        admin.create_topic(TOPIC, batch_messages=1, read_partitions=1, write_partitions=1)
    with Producer(pipeline.broker.address, topic=TOPIC, acks="all", linger="0ms") as producer:
        for n in range(batches):
            producer.write(b"%d" % n).result(60)


def plan(pipeline: Pipeline) -> None:
    """Plan what is published, and wait until all runs have ended."""
    rest = pipeline.rest
    rest.wait_for_dag(TABLE)
    rest.wait_for_run(PLAN, rest.trigger(PLAN), states=["success"])

    def look() -> bool:
        page = pipeline.page(PAGE)
        states = {each["state"] for each in page["ranges"]}
        if "failed" in states:  # nobody tries it again
            raise WaitError(f"a range has failed: {page['ranges']}")
        over = {run["state"] for run in rest.runs(TABLE)} <= {"success", "failed"}
        return states == {"in table"} and over

    until(look, "all ranges in the table")
