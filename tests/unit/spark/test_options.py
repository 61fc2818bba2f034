"""The options of a read and of a write: every wrong one is named, with what is allowed."""

import pickle

import pytest

from memq.core.named_values import NO_VALUES
from memq.errors import ConfigError, MemqError
from memq.reading.start import EARLIEST, LATEST
from memq.spark.bounds import Bound
from memq.spark.options import parse_read_options, parse_write_options

GIVEN = {"topic": "t"}
LIFE = "0123456789abcdef"


def test_defaults_read_all_that_is_there():
    """A batch read goes from the earliest to the latest; a stream begins with what is new."""
    batch = parse_read_options(GIVEN)
    stream = parse_read_options(GIVEN, stream=True)

    assert (batch.starting_offsets, batch.ending_offsets) == (Bound(EARLIEST), Bound(LATEST))
    assert (stream.starting_offsets, stream.ending_offsets) == (Bound(LATEST), Bound(LATEST))
    assert (batch.permissive, batch.read_through) == (False, "storage")
    assert batch.max_trigger_delay_ms == 15 * 60_000


def test_secrets_are_for_the_workers_too_and_are_not_shown(monkeypatch):
    """Options of the storage are those given, or else those of the driver's machine, whose zone is
    its own; neither they nor the token are in what reaches a log.
    """
    given = {"topic": "t", "bootstrap": "a:1", "token": "hush"}
    for options in (
        parse_write_options(given),
        parse_read_options(given | {"storageOptions": "secret_access_key=hush"}),
    ):
        assert options.token == "hush"  # noqa: S105 - no secret
        assert "hush" not in repr(options)
        assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301 - it is our own
    assert options.storage_options == {("secret_access_key", "hush")}

    there = parse_read_options(GIVEN)
    assert there.storage_options == NO_VALUES
    monkeypatch.setenv("MEMQ_ZONE", "a")
    assert parse_read_options(GIVEN) == there
    monkeypatch.setenv("MEMQ_STORAGE_OPTIONS", "region=x")
    assert parse_read_options(GIVEN).storage_options == {("region", "x")}
    with pytest.raises(ConfigError, match=r"option 'storageOptions': .* at its beg") as refused:
        parse_read_options(GIVEN | {"storageOptions": "hush"})
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"topic": ""}, "option 'topic' = ''"),
        ({"offsets": "1"}, "unknown option 'offsets'; a read knows bootstrap, topic, token"),
        ({"topic": "a b"}, "option 'topic' = 'a b': topic name"),
        ({"bootstrap": "nowhere"}, "option 'bootstrap' = 'nowhere'"),
        ({"startingOffsets": "first"}, "'startingOffsets' = 'first': must be earliest, latest, or"),
        *(
            ({"startingOffsets": text}, "must be earliest, latest, or JSON")
            for text in (
                *("{}", "[1]", '{"0": "x"}', '{"0": -3}', '{"-1": 3}', '{"0": true}'),
                *('{"t": {"0": 1}, "1": 2}', '{"t": {"0": -3}}'),
            )
        ),
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
            {"startingOffsets": '{"0": 5}', "startingTimestamp": "5"},
            "'startingOffsets' and 'startingTimestamp' exclude each other",
        ),
        ({"startingOffsetsByTimestamp": '{"0": 5}'}, "a read knows bootstrap, topic"),
        ({"endingTimestamp": "yesterday"}, "'endingTimestamp' = 'yesterday': must be millis"),
        ({"endingTimestamp": "2025-06-30"}, "has no time zone; write 2025-06-30Z for UTC"),
        *(
            ({"maxBytesPerTrigger": text}, f"option maxBytesPerTrigger: '{text}' is not a size")
            for text in ("m", "1.5m", "64 MB", "-1m", "1kk", "64mib", "")
        ),
        ({"mode": "dropmalformed"}, "option mode = 'dropmalformed': must be one of failfast"),
        ({"failOnDataLoss": "no"}, "option failOnDataLoss = 'no': expected a flag"),
        ({"columns": " , "}, "option 'columns' = ' , ': must be names"),
        ({"subscribe": "a,b"}, "options 'topic' and 'subscribe' exclude each other"),
        ({"subscribePattern": "a.*"}, "options 'topic' and 'subscribePattern' exclude each other"),
        ({"startingOffsets": '{"u": {"0": 1}}'}, "names the topics u, and the read is of t"),
        (
            {"minOffsetsPerTrigger": "3", "maxOffsetsPerTrigger": "2"},
            "'minOffsetsPerTrigger' = 3 is more than 'maxOffsetsPerTrigger' = 2",
        ),
        ({"consumer": "c", "mode": "permissive"}, "mode=permissive and failOnDataLoss=false do"),
        ({"consumer": "c", "view": "messages"}, "all records were read, which view=messages"),
        ({"consumer": "c", "failOnDataLoss": "false"}, "do not promise"),
        *(
            ({"topic": None} | given, message)
            for given, message in (
                ({}, "option 'topic' is missing"),
                ({"subscribe": " , "}, "option 'subscribe' = ' , ': must be names"),
                ({"subscribe": "a b"}, "option 'subscribe' = 'a b': topic name"),
                ({"subscribePattern": "("}, "option 'subscribePattern' = '(': missing )"),
                (
                    {"subscribe": "a,b", "startingOffsets": '{"0": 1}'},
                    "does not say of which topic",
                ),
                (
                    {"subscribePattern": "a.*", "endingOffsets": '{"0": 1}'},
                    "of which topic",
                ),
                (
                    {"subscribe": "a,b", "startingOffsets": '{"a": {"0": 1}}'},
                    "and the read is of a, b",
                ),
                (
                    {
                        "subscribePattern": "a.*",
                        "startingOffsets": '{"ab": {"0": 1}, "b": {"0": 1}}',
                    },
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
                ({"subscribe": "a", "topicId": LIFE}, "which 'topic' has to name"),
            )
        ),
    ],
)
def test_a_wrong_option_is_named(given, message):
    """The error has the option, its value, and what is allowed; so it is with a choice of topics,
    and with what speaks of another one.
    """
    given = {name: value for name, value in (GIVEN | given).items() if value is not None}
    with pytest.raises(ConfigError) as caught:
        parse_read_options(given)

    assert message in str(caught.value)


def test_options_of_one_of_several_topics():
    """JSON by topic becomes that of the topic, and one topic may be spoken of in both ways."""
    several = parse_read_options({"subscribe": "a,b"})
    by_topic = {"startingOffsets": '{"a": {"0": 5}}'}
    pattern = parse_read_options(by_topic | {"subscribePattern": "[ab]"})
    one = pattern.of_topic("a", LIFE)

    assert [name for name in "abc" if several.covers(name)] == ["a", "b"]
    assert [name for name in "abc" if pattern.covers(name)] == ["a"]
    assert not parse_read_options({"subscribePattern": ".*"}).covers("_memq_audit")
    assert (one.topic, one.topic_id, one.subscribe_pattern) == ("a", LIFE, None)
    assert one.starting_offsets == Bound(partitions={0: 5})
    assert parse_read_options(by_topic | {"topic": "a"}).starting_offsets == Bound(
        partitions={0: 5}
    )


SIZES = {"64mb": 64 << 20, "1g": 1 << 30, "2T": 2 << 40, "1.5MiB": 3 << 19, " 64MiB ": 64 << 20}


def test_sizes_are_written_as_in_spark_or_as_in_memq():
    """Spark's sizes count by 1024 and take no heed of case; ours name the unit in full."""
    sizes = {
        text: parse_read_options(GIVEN | {"maxBytesPerTrigger": text}).max_bytes_per_trigger
        for text in SIZES
    }
    assert sizes == SIZES
    assert parse_write_options(GIVEN | {"messageBytes": "2m"}).producer["message_bytes"] == 2 << 20


def test_options_of_a_write_are_its_own():
    """Without a jobId a write is one of its own; what Spark adds for itself is left out."""
    options = {"TOPIC": "t", "jobid": "j", "checkpointLocation": "x", "queryName": "q"}
    parsed = parse_write_options(options)
    assert (parsed.topic, parsed.job_id) == ("t", "j")
    assert parse_write_options({"topic": "t"}).job_id is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "option 'topic' is missing"),
        ({"topic": "t", "compresion": "zstd"}, "unknown option 'compresion'; a write knows"),
        ({"topic": "t", "jobId": ""}, "must have 1 to 128 bytes"),
        ({"topic": "t", "messageBytes": "1"}, "messageBytes = 1B: must be at least 1KiB"),
        ({"topic": "no/topic"}, "no/topic"),
    ],
)
def test_a_wrong_option_of_a_write_is_named(options, message):
    """What is missing, unknown or out of its limits is named."""
    with pytest.raises(MemqError, match=message):
        parse_write_options(options)
