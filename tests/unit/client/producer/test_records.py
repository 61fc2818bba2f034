"""What callers may give as a record, and what they are told otherwise."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from memq.client.producer.accumulator import HEADER_BYTES, RECORD_BYTES, check_record
from memq.errors import InvalidRequestError


def test_bytes_like_values_are_copied():
    """What can change later is copied; bytes are kept as they are."""
    array = bytearray(b"abc")
    record = check_record(array, memoryview(b"key"), None, None)
    array[0] = 0
    assert (record.value, record.key) == (b"abc", b"key")


def test_none_is_a_tombstone():
    """A record may have no value and no key."""
    assert check_record(None, None, None, None) == (None, None, None, None, RECORD_BYTES)


@pytest.mark.parametrize("headers", [{"é": b"12", "b": None}, [("é", b"12"), ("b", None)]])
def test_headers_are_a_mapping_or_pairs(headers):
    """Both forms give pairs, and the size counts names in UTF-8."""
    record = check_record(b"v", None, headers, None)
    assert record.headers == [("é", b"12"), ("b", None)]
    assert record.size_bytes == RECORD_BYTES + 1 + 2 * HEADER_BYTES + 3 + 2


def test_headers_given_once_are_read_once():
    """A generator of headers is fine."""
    record = check_record(b"v", None, ((name, b"x") for name in "ab"), None)
    assert record.headers == [("a", b"x"), ("b", b"x")]


def test_timestamps_are_microseconds():
    """Datetimes with any time zone and plain microseconds mean the same."""
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    expected = 1_767_323_045_678_901
    elsewhere = moment.astimezone(timezone(timedelta(hours=-7)))
    for given in (moment, elsewhere, expected):
        assert check_record(b"", None, None, given).timestamp_us == expected
    before = datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    assert check_record(b"", None, None, before).timestamp_us == -1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("text", None, None, None), r"value\.encode\(\)"),
        ((1, None, None, None), "not int"),
        ((b"", "key", None, None), "a key must be bytes"),
        ((b"", None, "text", None), "headers must be"),
        ((b"", None, 5, None), "headers must be"),
        ((b"", None, {b"name": b""}, None), "header name must be str"),
        ((b"", None, {"name": "text"}, None), "value of header 'name'"),
        ((b"", None, {"\ud800": b""}, None), "not valid Unicode"),
        ((b"", None, None, 1.5), "not float"),
        ((b"", None, None, True), "not bool"),
        ((b"", None, None, 2**63), "64 bits"),
        ((b"", None, None, datetime(2026, 1, 1)), "no time zone"),  # noqa: DTZ001
    ],
)
def test_wrong_types_are_told_with_the_way_out(arguments, text):
    """The error names what was given and how to give it."""
    with pytest.raises(InvalidRequestError, match=text):
        check_record(*arguments)
