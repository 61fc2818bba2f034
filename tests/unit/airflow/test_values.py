"""Values as users write them, and as templates make them."""

from datetime import UTC, datetime, timedelta, timezone

import pendulum
import pytest

from airflow_provider_memq.values import (
    bytes_or,
    count_or,
    duration_ms_or,
    parse_flag,
    parse_offsets,
    parse_time_ms,
    time_ms_or_none,
)
from memq.errors import ConfigError


@pytest.mark.parametrize("given", [{"0": "5"}, {0: 5}, '{"0": 5}', '{"0": "5"}'])
def test_offsets_as_users_write_them(given):
    """A mapping, what XCom makes of it, and JSON are the same."""
    assert parse_offsets("offsets", given) == {0: 5}


@pytest.mark.parametrize(
    "given", ["5", 5, "", "{", "[" * 100_000, {"0": -1}, {"a": 1}, {0: None}, {0: True}, []]
)
def test_offsets_that_are_none(given):
    """Everything else is refused by name."""
    with pytest.raises(ConfigError, match="offsets"):
        parse_offsets("offsets", given)


@pytest.mark.parametrize(
    "given",
    [
        "2026-01-02T03:00:00Z",
        "2026-01-02 03:00:00+00:00",
        datetime(2026, 1, 2, 4, tzinfo=timezone(timedelta(hours=1))),
        datetime(2026, 1, 2, 2, 59, 59, 999_001, tzinfo=UTC),  # up, not down
        pendulum.datetime(2026, 1, 2, 3),  # what a data interval is made of
    ],
)
def test_times_as_users_write_them(given):
    """Templates, ISO texts and datetimes; a part of a millisecond counts as a whole one."""
    assert parse_time_ms("at", given) == 1_767_322_800_000


@pytest.mark.parametrize("given", ["", "None", "yesterday", "2026-01-02T03:00:00"])
def test_times_that_are_none(given):
    """What is no time, or has no time zone, is refused."""
    with pytest.raises(ConfigError, match=r"at = "):
        parse_time_ms("at", given)


@pytest.mark.parametrize("given", [None, "", " ", "None"])
def test_nothing_is_the_default(given):
    """None, and what a template makes of it."""
    assert count_or(7, "n", given) == bytes_or(7, "n", given) == duration_ms_or(7, given) == 7
    assert time_ms_or_none("at", given) is None


def test_numbers_as_users_write_them():
    """Numbers, their text, and sizes and durations with their unit."""
    assert count_or(7, "n", 5) == count_or(7, "n", " 5 ") == bytes_or(7, "n", "5") == 5
    assert bytes_or(7, "n", "64MiB") == 64 << 20
    assert duration_ms_or(7, "10m") == 600_000
    assert parse_flag("f", "True") is parse_flag("f", True) is True
    assert parse_flag("f", "false") is False


@pytest.mark.parametrize("given", ["much", "-1", "1.5", True, "5 MiB of it"])
def test_numbers_that_are_none(given):
    """What is no number is refused by name."""
    with pytest.raises(ConfigError):
        bytes_or(7, "n", given)
    with pytest.raises(ConfigError, match="f = "):
        parse_flag("f", str(given) + "!")
