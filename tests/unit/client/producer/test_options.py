"""A producer's options: human values in, plain units out, and clear refusals."""

import dataclasses

import pytest

from memq.client.producer.options import (
    PRODUCER_OPTIONS,
    ProducerArguments,
    ProducerOptions,
    answer_timeout_s,
)
from memq.core.topic import TopicConfig
from memq.errors import ConfigError


def test_every_argument_is_parsed():
    """Each typed argument is an option, and has its field in plain units."""
    assert [option.name for option in PRODUCER_OPTIONS] == list(ProducerArguments.__annotations__)
    fields = ["topic", *(option.field for option in PRODUCER_OPTIONS)]
    assert [field.name for field in dataclasses.fields(ProducerOptions)] == fields


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"acks": 2}, "acks = 2"),
        ({"acks": True}, "acks = True"),
        ({"acks": "some"}, "'all', 1 or 0"),
        ({"compression": "gzip"}, "zstd"),
        ({"linger": "10"}, "linger"),
        ({"linger": "2h"}, "linger = 2h: .* 1m"),
        ({"message_bytes": "1GiB"}, "message_bytes"),
        ({"message_bytes": 1.5}, "message_bytes"),
        ({"buffer_bytes": "10KiB"}, "at least one Message"),
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"delivery_timeout": 5}, "delivery_timeout"),
        ({"max_block": "soon"}, "max_block"),
        ({"producer_id": ""}, "1 to 200 printable ASCII"),
        ({"producer_id": "é"}, "1 to 200 printable ASCII"),
        ({"producer_id": "job", "epoch": -1}, "epoch = -1"),
        ({"epoch": 1}, "needs a producer_id"),
    ],
)
def test_bad_values_are_refused_by_name(arguments, text):
    """The error names the option, the value and what is allowed."""
    with pytest.raises(ConfigError, match=text):
        ProducerOptions.parse(topic="t", **arguments)


def test_delivery_timeout_comes_from_the_topic():
    """By default a Batch has its age and its upload, and retries 30 s more."""
    config = TopicConfig.create("t", batch_age="10s", upload_deadline="60s")
    options = ProducerOptions.parse(topic="t")
    assert options.delivery_timeout_s(config) == 100
    assert answer_timeout_s(config) == 80


def test_delivery_timeout_ends_before_the_topic_forgets():
    """No retry may come after the deduplication window, whoever set the deadline."""
    config = TopicConfig.create("t", batch_age="1s", upload_deadline="1s", dedup_window="10s")
    assert ProducerOptions.parse(topic="t").delivery_timeout_s(config) < 10
    ok = ProducerOptions.parse(topic="t", delivery_timeout="9s")
    assert ok.delivery_timeout_s(config) == 9
    with pytest.raises(ConfigError, match="dedup_window"):
        ProducerOptions.parse(topic="t", delivery_timeout="10s").delivery_timeout_s(config)
