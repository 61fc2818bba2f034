"""Options of a consumer: what they come to, and what is refused."""

from datetime import datetime

import pytest

from memq.client.consumer.options import ConsumerOptions
from memq.errors import ConfigError, InvalidRequestError


def test_the_token_is_not_shown():
    """Nobody finds it in a log."""
    assert "hush" not in repr(ConsumerOptions.parse(topic="t", token="hush"))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"order": "sideways"}, r"order = 'sideways': must be one of none, producer, key"),
        ({"on_out_of_range": "skip"}, "on_out_of_range = 'skip'"),
        ({"read_through": "proxy"}, "read_through = 'proxy'"),
        ({"start": "yesterday"}, "start = 'yesterday'"),
        ({"start": datetime(2020, 1, 1)}, "no time zone"),  # noqa: DTZ001 - that is the point
        ({"auto_commit": True}, "auto_commit needs a group"),
        ({"session_timeout": "999ms"}, "session_timeout = 999ms: must be"),
        ({"max_poll_interval": "0ms"}, "max_poll_interval"),
        ({"fetch_threads": 0}, "fetch_threads = 0"),
        ({"prefetch_bytes": "0B"}, "prefetch_bytes"),
        ({"prefetch_bytes": 1.5}, "prefetch_bytes"),
        ({"client": "c" * 201}, "client has 201 characters"),
    ],
)
def test_wrong_options(given, named):
    """A wrong option is refused by an error that names it and its limits."""
    with pytest.raises(ConfigError, match=named):
        ConsumerOptions.parse(topic="t", **given)


@pytest.mark.parametrize(
    "given", [{"topic": "a/b"}, {"topic": "t", "group": ""}, {"topic": "t", "start": {0: -1}}]
)
def test_wrong_names(given):
    """Names and offsets that cannot be are refused before anything is sent."""
    with pytest.raises(InvalidRequestError):
        ConsumerOptions.parse(**given)
