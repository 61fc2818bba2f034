"""Any DataFrame written to any topic is stored as it is, or refused by name with nothing stored.

`python -m tests.system.spark.any_rows --examples 500` tries many, all in one JVM.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.types as pat
from pyspark.errors import PySparkException

from memq import AdminClient, read_range
from memq.testing.broker import BrokerProcess
from tests.system.spark import conftest
from tests.unit.client.producer.any_tables import array_of, fields_of, given_type, topic_type
from tests.unit.client.producer.test_any_table import check_refusal, check_stored

ROWS = 4
LIKELY = 0.7  # that a type is one of Spark, or that of the topic


def spark_type(chance, kind):  # noqa: PLR0911 - a case for each kind
    """The type nearest to this one that Spark has."""
    if pat.is_struct(kind):
        fields = {each.name.casefold(): each for each in kind}.values()  # it tells no cases apart
        parts = [pa.field(each.name, spark_type(chance, each.type)) for each in fields]
        return pa.struct(parts or [pa.field("a", pa.int32())])
    if pat.is_map(kind):
        key = chance.choice([pa.utf8(), pa.int32(), pa.date32()])
        return pa.map_(key, spark_type(chance, kind.item_type))
    if pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind):
        return pa.list_(spark_type(chance, kind.value_type))
    if pat.is_integer(kind):
        return chance.choice([pa.int8(), pa.int16(), pa.int32(), pa.int64()])
    if pat.is_floating(kind):
        return pa.float64() if pat.is_float64(kind) else pa.float32()
    if pat.is_decimal(kind):
        return pa.decimal128(10, 2) if kind.scale else pa.decimal128(38, 0)
    if pat.is_timestamp(kind):
        return pa.timestamp("us", kind.tz and "UTC")
    if pat.is_date(kind):
        return pa.date32()
    if "binary" in str(kind):
        return pa.binary()
    return pa.bool_() if pat.is_boolean(kind) else pa.utf8()


def topic_and_frame(chance):
    """The schema of a topic, and a table of types that Spark has."""
    schema = pa.schema(fields_of(chance, _some_type, least=1))
    fields = []
    for each in schema:
        given = each.type if chance.random() < LIKELY else given_type(chance, each.type)
        fields.append((each.name, spark_type(chance, given)))
    fields = list({name.casefold(): (name, kind) for name, kind in fields}.values())
    columns = [_clean(array_of(chance, kind, ROWS), kind) for _, kind in fields]
    return schema, pa.table(columns, names=[name for name, _ in fields])


def _some_type(chance):
    kind = topic_type(chance)
    return spark_type(chance, kind) if chance.random() < LIKELY else kind


def _clean(array, kind):
    """The values, but for texts that are none, which no JVM has; no slice, of which Spark makes no
    DataFrame.
    """
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return pa.nulls(len(array), kind)
    return array.take(pa.array(range(len(array))))


def write_and_compare(spark, address, topic, seed):
    """Write a DataFrame to a new topic, and read it back: "stored" or "refused"."""
    schema, table = topic_and_frame(random.Random(seed))
    with AdminClient(address) as admin:
        admin.create_topic(
            topic, schema=schema, batch_age="1ms", write_partitions=1, read_partitions=1
        )
        refused = None
        try:
            rows = spark.createDataFrame(table).coalesce(1)
            rows.write.format("memq").options(bootstrap=address, topic=topic).mode("append").save()
        except PySparkException as exc:
            refused = str(exc)
        end = admin.offsets(topic)[0].end
    found = read_range(address, topic=topic, partition=0, start=0, end=end)
    if refused is None:
        check_stored(list(found.to_struct_array()), schema, table)
        return "stored"
    assert found.num_rows == 0, refused
    said = re.search(r"SchemaMismatchError: (.*)", refused)
    assert said is not None, refused
    check_refusal(said[1], schema, table)
    return "refused"


def main():
    """Try many."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--examples", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    arguments = parser.parse_args()
    outcomes = Counter()
    with tempfile.TemporaryDirectory() as folder, BrokerProcess(Path(folder) / "broker") as broker:
        conftest.SPARK_CONFIG["spark.master"] = "local[2]"  # no task is tried again
        spark = conftest.start_session(Path(folder) / "warehouse")
        try:
            for seed in range(arguments.seed, arguments.seed + arguments.examples):
                try:
                    outcomes[write_and_compare(spark, broker.address, f"rows-{seed}", seed)] += 1
                except BaseException:
                    sys.stderr.write(f"--seed {seed} --examples 1 fails\n")
                    raise
                if sum(outcomes.values()) % 50 == 0:
                    sys.stderr.write(f"{sum(outcomes.values())} examples: {dict(outcomes)}\n")
        finally:
            spark.stop()
    sys.stderr.write(f"{sum(outcomes.values())} examples: {dict(outcomes)}\n")


if __name__ == "__main__":
    main()
