"""What a write checks before it starts, and how rows become the same Messages each time."""

from __future__ import annotations

import pyarrow as pa
import pytest

from memq.client.producer.tables import lacks_timestamp
from memq.core.format.schema import DEFAULT_SCHEMA
from memq.errors import ConfigError, SchemaMismatchError
from memq.spark.options import parse_write_options
from memq.spark.write_plan import check_rows


def test_options_have_any_case_and_those_of_spark_are_left_out():
    """Options come under their own names; what Spark adds for itself is not one of them."""
    options = {"TOPIC": "t", "jobid": "j", "checkpointLocation": "x", "queryName": "q"}
    parsed = parse_write_options(options)
    assert (parsed.topic, parsed.job_id) == ("t", "j")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "option 'topic' is missing"),
        ({"topic": "t", "topics": "u"}, "unknown option 'topics'"),
        ({"topic": "t", "jobId": ""}, "must have 1 to 128 bytes"),
        ({"topic": "no/topic"}, "no/topic"),
    ],
)
def test_wrong_options_are_named(options, message):
    """What is missing, unknown or out of its limits is named."""
    with pytest.raises(Exception, match=message) as caught:
        parse_write_options(options)
    assert type(caught.value).__module__ == "memq.errors"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"key": pa.utf8()}, "takes a column 'value'"),
        ({"value": pa.int64()}, "expects column 'value'"),
        ({"value": pa.utf8(), "timestamp": pa.int64()}, "an instant, but got .*; cast it first"),
        ({"value": pa.utf8(), "timestamp": pa.utf8()}, "an instant, but got .*; cast it first"),
    ],
)
def test_rows_that_do_not_fit_are_refused(columns, message):
    """A column that is missing, or cannot become the topic's, is named."""
    with pytest.raises(SchemaMismatchError, match=message):
        check_rows(pa.schema(list(columns.items())), DEFAULT_SCHEMA, "t")


def test_texts_and_times_of_spark_fit():
    """Strings for bytes and instants of any zone are what a default topic takes."""
    instant = pa.timestamp("us", "America/New_York")
    rows = pa.schema([("key", pa.utf8()), ("value", pa.utf8()), ("timestamp", instant)])
    check_rows(rows, DEFAULT_SCHEMA, "t")
    assert not lacks_timestamp(rows.names, DEFAULT_SCHEMA)
    assert lacks_timestamp(["value"], DEFAULT_SCHEMA)
    assert not lacks_timestamp(["value"], pa.schema([("value", pa.utf8())]))


def test_a_missing_job_id_is_no_error():
    """Without a jobId a write is one of its own."""
    assert parse_write_options({"topic": "t"}).job_id is None
    with pytest.raises(ConfigError):
        parse_write_options({"topic": "t", "jobId": "x" * 129})
