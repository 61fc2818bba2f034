"""Times are written in ISO 8601, or as so long ago."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.cli.times import parse_time, to_us
from memq.core.units import iso_ms, iso_us
from memq.errors import ConfigError

NOW = datetime(1970, 1, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1970-01-01T00:00:01Z", 1_000),
        ("1970-01-01T02:00:00.250+02:00", 250),
        ("1970-01-02", 86_400_000),
        ("1970-01-01 00:01", 60_000),
        ("15m", 2_700_000),
        ("1.5s", 3_598_500),
    ],
)
def test_parse(text, time_ms):
    """A time has any zone, UTC when it names none; a duration counts back from now."""
    assert to_us(parse_time(text, NOW)) == time_ms * 1_000


@pytest.mark.parametrize("text", ["", "yesterday", "12", "2025-13-01", "-5m", "9999999999d"])
def test_parse_refuses(text):
    """What is no time is refused with an example of one."""
    with pytest.raises(ConfigError, match="2025-06-30T12:00:00Z, or 15m"):
        parse_time(text, NOW)


@given(st.datetimes(timezones=st.just(UTC)))
def test_round_trip(moment):
    """What is printed is read as the same time, over the whole calendar."""
    assert parse_time(iso_us(to_us(moment)), NOW) == moment
    assert moment - parse_time(iso_ms(to_us(moment) // 1_000), NOW) < timedelta(milliseconds=1)


def test_beyond_the_calendar():
    """Any 64 bits can be printed, since anybody can send them as a timestamp."""
    assert iso_us(1_500_000) == "1970-01-01T00:00:01.500000Z"
    assert iso_us(2**63 - 1) == f"{2**63 - 1} microseconds since 1970"
