"""The options of a read: every wrong one is named, with what is allowed."""

from __future__ import annotations

import pickle

import pytest

from memq.core.named_values import NO_VALUES
from memq.errors import ConfigError, CorruptDataError, DataLossError, StorageError
from memq.spark.bounds import EARLIEST, LATEST, Bound
from memq.spark.options import (
    parse_read_options,
    parse_write_options,
)

GIVEN = {"topic": "t"}


def test_defaults_read_all_that_is_there():
    """A batch read goes from the earliest to the latest; a stream begins with what is new."""
    batch = parse_read_options(GIVEN)
    stream = parse_read_options(GIVEN, stream=True)

    assert (batch.starting, batch.ending) == (Bound(word=EARLIEST), Bound(word=LATEST))
    assert (stream.starting, stream.ending) == (Bound(word=LATEST), Bound(word=LATEST))
    assert (batch.permissive, batch.read_through) == (False, "storage")


def test_every_option_arrives_in_any_case():
    """Names are taken in any case, and values become what they mean."""
    found = parse_read_options(
        {
            "TOPIC": "t",
            "Bootstrap": "a:1,b:2",
            "startingoffsets": '{"0": 5, "1": -2}',
            "ENDINGOFFSETS": '{"1": -1, "0": 9}',
            "columns": "value, key",
            "view": "records",
            "mode": "PERMISSIVE",
            "failOnDataLoss": "False",
            "minPartitions": "12",
            "maxBytesPerPartition": "64MiB",
            "maxOffsetsPerTrigger": "7",
            "maxBytesPerTrigger": "1000",
            "token": "secret",
            "readThrough": "broker",
        }
    )

    assert found.starting == Bound(offsets={0: 5, 1: EARLIEST})
    assert found.ending == Bound(offsets={0: 9, 1: LATEST})
    assert (found.bootstrap, found.columns) == ("a:1,b:2", ("value", "key"))
    assert (found.permissive, found.fail_on_data_loss) == (True, False)
    assert (found.min_partitions, found.max_bytes_per_partition) == (12, 64 << 20)
    assert (found.max_offsets_per_trigger, found.max_bytes_per_trigger) == (7, 1000)
    assert (found.token, found.read_through) == ("secret", "broker")


def test_the_zone_of_the_driver_is_its_own(monkeypatch):
    """The zone of the driver's machine is no option of what executors do."""
    there = parse_read_options(GIVEN)
    monkeypatch.setenv("MEMQ_ZONE", "a")
    assert parse_read_options(GIVEN) == there


def test_the_token_is_not_shown():
    """Options that reach a log do not take the token there."""
    given = {"topic": "t", "bootstrap": "a:1", "token": "hush"}
    for options in (parse_read_options(given), parse_write_options(given)):
        assert options.token == given["token"]
        assert "hush" not in repr(options)


def test_options_of_the_storage(monkeypatch):
    """They are for the workers too: those given, or else those of the driver's machine."""
    given = GIVEN | {"storageOptions": "secret_access_key=hush"}
    options = parse_read_options(given)

    assert options.storage_options == {("secret_access_key", "hush")}
    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301 - it is our own
    assert "hush" not in repr(options)
    assert parse_read_options(GIVEN).storage_options == NO_VALUES
    monkeypatch.setenv("MEMQ_STORAGE_OPTIONS", "region=x")
    assert parse_read_options(GIVEN).storage_options == {("region", "x")}
    with pytest.raises(ConfigError, match=r"option 'storageOptions': .* at its beg") as refused:
        parse_read_options(GIVEN | {"storageOptions": "hush"})
    assert "hush" not in str(refused.value)


def test_times_are_milliseconds_or_iso():
    """A time is given as milliseconds or as ISO 8601 with its zone."""
    by_number = parse_read_options(GIVEN | {"startingTimestamp": "1751284800000"})
    by_text = parse_read_options(GIVEN | {"startingTimestamp": "2025-06-30T14:00:00+02:00"})

    assert by_number.starting == by_text.starting == Bound(at_ms=1_751_284_800_000)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"offsets": "1"},
            "unknown option 'offsets'; a read knows bootstrap, topic, token",
        ),
        ({"startingoffset": "1"}, "unknown option 'startingoffset' (here it is startingOffsets)"),
        ({"kafka.bootstrap.servers": "h:1"}, "(here it is bootstrap); a read knows"),
        ({"topic": "a b"}, "option 'topic' = 'a b': topic name"),
        ({"bootstrap": "nowhere"}, "option 'bootstrap' = 'nowhere'"),
        ({"startingOffsets": "first"}, "'startingOffsets' = 'first': must be earliest, latest, or"),
        ({"startingOffsets": "{}"}, "must be earliest, latest, or JSON"),
        ({"startingOffsets": "[1]"}, "must be earliest, latest, or JSON"),
        ({"startingOffsets": '{"0": "x"}'}, "must be earliest, latest, or JSON"),
        ({"startingOffsets": '{"0": -3}'}, "must be earliest, latest, or JSON"),
        ({"startingOffsets": '{"-1": 3}'}, "must be earliest, latest, or JSON"),
        ({"startingOffsets": '{"0": true}'}, "must be earliest, latest, or JSON"),
        (
            {"startingOffsets": '{"0": 1}', "endingOffsets": '{"1": 2}'},
            "name different read partitions: [0] and [1]",
        ),
        (
            {"startingOffsets": '{"0": 5}', "endingOffsets": '{"0": 4}'},
            "'endingOffsets' = 4 for read partition 0: it is before 'startingOffsets' = 5",
        ),
        ({"endingOffsets": "earliest", "startingOffsets": "latest"}, "ends before the read starts"),
        (
            {"startingOffsets": "latest", "startingTimestamp": "5"},
            "'startingOffsets' and 'startingTimestamp' exclude each other",
        ),
        (
            {"startingOffsetsByTimestamp": '{"0": 5}', "startingTimestamp": "5"},
            "'startingTimestamp' and 'startingOffsetsByTimestamp' exclude each other",
        ),
        ({"startingOffsetsByTimestamp": "5"}, "must be JSON of read partition to time"),
        ({"startingOffsetsByTimestamp": '{"0": -1}'}, "must be JSON of read partition to time"),
        ({"startingOffsetsByTimestamp": '{"0": 1.5}'}, "must be JSON of read partition to time"),
        ({"endingOffsetsByTimestamp": '{"0": "2025-06-30"}'}, "must be JSON of read partition"),
        (
            {"startingOffsetsByTimestamp": '{"0": 5}', "endingOffsets": '{"1": 5}'},
            "name different read partitions: [0] and [1]",
        ),
        (
            {"endingTimestamp": "yesterday"},
            "option 'endingTimestamp' = 'yesterday': must be millis",
        ),
        ({"endingTimestamp": "2025-06-30"}, "has no time zone; write 2025-06-30Z for UTC"),
        ({"minPartitions": "0"}, "option 'minPartitions' = '0': must be a whole number, 1 or more"),
        ({"maxOffsetsPerTrigger": "many"}, "must be a whole number, 1 or more"),
        ({"maxBytesPerPartition": "0"}, "must be more than 0"),
        ({"maxBytesPerTrigger": "64 MB"}, "option 'maxBytesPerTrigger' = '64 MB'"),
        ({"mode": "dropmalformed"}, "option 'mode' = 'dropmalformed': must be failfast or permis"),
        ({"failOnDataLoss": "no"}, "option 'failOnDataLoss' = 'no': must be true or false"),
        ({"view": "batches"}, "option 'view' = 'batches': must be records or messages"),
        ({"readThrough": "air"}, "option 'readThrough' = 'air': must be storage or broker"),
        ({"columns": " , "}, "option 'columns' = ' , ': must name columns"),
        ({"columns": "a,b,a"}, "names a column twice"),
        ({"incarnation": ""}, "option 'incarnation' = ''"),
        ({"subscribe": "a,b"}, "options 'topic' and 'subscribe' exclude each other"),
        ({"subscribePattern": "a.*"}, "options 'topic' and 'subscribePattern' exclude each other"),
        ({"startingOffsets": '{"u": {"0": 1}}'}, "names the topics u, and the read is of t"),
        ({"startingOffsets": '{"t": {"0": 1}, "1": 2}'}, "must be earliest, latest, or JSON"),
        ({"startingOffsets": '{"t": {"0": -3}}'}, "must be earliest, latest, or JSON"),
        ({"minOffsetsPerTrigger": "0"}, "must be a whole number, 1 or more"),
        (
            {"minOffsetsPerTrigger": "3", "maxOffsetsPerTrigger": "2"},
            "'minOffsetsPerTrigger' = 3 is more than 'maxOffsetsPerTrigger' = 2",
        ),
        ({"maxTriggerDelay": "soon"}, "option 'maxTriggerDelay' = 'soon'"),
        ({"consumer": ""}, "option 'consumer' = ''"),
        ({"consumer": "c", "mode": "permissive"}, "mode=permissive and failOnDataLoss=false do"),
        ({"consumer": "c", "view": "messages"}, "all records were read, which view=messages"),
        ({"consumer": "c", "failOnDataLoss": "false"}, "do not promise"),
    ],
)
def test_a_wrong_option_is_named(given, message):
    """The error has the option, its value, and what is allowed."""
    with pytest.raises(ConfigError) as caught:
        parse_read_options(GIVEN | given)

    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"subscribe": " , "}, "option 'subscribe' = ' , ': must name topics"),
        ({"subscribe": "a,b,a"}, "names a topic twice"),
        ({"subscribe": "a b"}, "option 'subscribe' = 'a b': topic name"),
        ({"subscribePattern": "("}, "option 'subscribePattern' = '(': is no regular expression"),
        ({"subscribe": "a,b", "startingOffsets": '{"0": 1}'}, "does not say of which topic"),
        ({"subscribePattern": "a.*", "endingOffsetsByTimestamp": '{"0": 1}'}, "of which topic"),
        ({"subscribe": "a,b", "startingOffsets": '{"a": {"0": 1}}'}, "and the read is of a, b"),
        (
            {"subscribePattern": "a.*", "startingOffsets": '{"ab": {"0": 1}, "b": {"0": 1}}'},
            "names topic 'b', which 'subscribePattern' does not match",
        ),
        (
            {
                "subscribePattern": ".*",
                "startingOffsets": '{"a": {"0": 1}}',
                "endingOffsets": '{"b": {"0": 1}}',
            },
            "name different topics: a and b",
        ),
        (
            {
                "subscribe": "a",
                "startingOffsets": '{"a": {"0": 5}}',
                "endingOffsets": '{"a": {"0": 4}}',
            },
            "'endingOffsets' = 4 for read partition 0: it is before",
        ),
        ({"subscribe": "a", "incarnation": "0123456789abcdef"}, "which 'topic' has to name"),
    ],
)
def test_a_wrong_choice_of_topics_is_named(given, message):
    """What is no choice of topics, or speaks of another one, is refused before anything is read."""
    with pytest.raises(ConfigError) as caught:
        parse_read_options(given)

    assert message in str(caught.value)


def test_options_of_one_of_several_topics():
    """JSON by topic becomes that of the topic, and one topic may be spoken of in both ways."""
    several = parse_read_options({"subscribe": "a,b"})
    by_topic = {"startingOffsets": '{"a": {"0": 5}}'}
    pattern = parse_read_options(by_topic | {"subscribePattern": "[ab]"})
    one = pattern.of_topic("a", "0123456789abcdef")

    assert [name for name in "abc" if several.covers(name)] == ["a", "b"]
    assert [name for name in "abc" if pattern.covers(name)] == ["a"]
    assert not parse_read_options({"subscribePattern": ".*"}).covers("_memq_audit")
    assert (one.topic, one.incarnation, one.subscribe_pattern) == ("a", "0123456789abcdef", None)
    assert one.starting == Bound(offsets={0: 5})
    assert parse_read_options(by_topic | {"topic": "a"}).starting == Bound(offsets={0: 5})


@pytest.mark.parametrize(
    ("text", "delay_ms"), [("15m", 900_000), ("15min", 900_000), ("90s", 90_000), ("1500", 1_500)]
)
def test_a_delay_is_written_as_in_spark_or_as_in_memq(text, delay_ms):
    """Times have Spark's units, and without one are milliseconds; 15 minutes by default."""
    assert parse_read_options(GIVEN | {"maxTriggerDelay": text}).max_trigger_delay == delay_ms
    assert parse_read_options(GIVEN).max_trigger_delay == 15 * 60_000


@pytest.mark.parametrize(
    ("given", "gone", "damaged"),
    [
        ({}, False, False),
        ({"failOnDataLoss": "false"}, True, False),
        ({"mode": "permissive"}, True, True),
    ],
)
def test_only_what_was_allowed_is_passed_over(given, gone, damaged):
    """A Batch that is gone or damaged is passed over when that was said, any other never."""
    options = parse_read_options({"topic": "t"} | given)

    assert options.passes(DataLossError()) is gone
    assert options.passes(CorruptDataError()) is damaged
    assert not options.passes(StorageError())


def test_the_topic_must_be_named():
    """There is no read without a topic."""
    with pytest.raises(ConfigError, match="option 'topic' is missing"):
        parse_read_options({})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1000", 1000),
        ("512B", 512),
        ("512b", 512),
        ("64k", 64 << 10),
        ("64m", 64 << 20),
        ("64MB", 64 << 20),
        ("64mb", 64 << 20),
        ("1g", 1 << 30),
        ("2T", 2 << 40),
        ("1p", 1 << 50),
        ("1.5MiB", 3 << 19),
        (" 64MiB ", 64 << 20),
    ],
)
def test_sizes_are_written_as_in_spark_or_as_in_memq(text, size):
    """Spark's sizes count by 1024 and take no heed of case; ours name the unit in full."""
    given = {"maxBytesPerTrigger": text}

    assert parse_read_options(GIVEN | given).max_bytes_per_trigger == size


@pytest.mark.parametrize("text", ["0m", "m", "1.5m", "64 MB", "-1m", "1kk", "64mib", ""])
def test_what_is_no_size_is_refused(text):
    """A size of 0, a fraction of Spark's units, and what neither writes, are errors."""
    with pytest.raises(ConfigError, match="option 'maxBytesPerTrigger'"):
        parse_read_options(GIVEN | {"maxBytesPerTrigger": text})


def test_a_write_takes_sizes_of_spark():
    """Messages are cut to a size that may be written as Spark does."""
    assert parse_write_options(GIVEN | {"messageBytes": "2m"}).producer["message_bytes"] == 2 << 20


def test_times_by_partition_are_milliseconds_or_iso():
    """JSON gives each read partition a time of its own, and limits the read to those it names."""
    given = {
        "startingOffsetsByTimestamp": '{"0": 1751284800000, "1": "2025-06-30T12:00:00Z"}',
        "endingOffsetsByTimestamp": '{"1": "1751284800001", "0": 1751284800002}',
    }

    found = parse_read_options(GIVEN | given)

    assert found.starting == Bound(times={0: 1_751_284_800_000, 1: 1_751_284_800_000})
    assert found.ending == Bound(times={0: 1_751_284_800_002, 1: 1_751_284_800_001})
    assert set(found.starting.partitions) == {0, 1}
