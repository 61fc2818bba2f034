"""One row of an option serves parsing, limits and the words of an error."""

from typing import Annotated, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.options import Option, defaults, options_of, parse_options
from memq.errors import ConfigError


class Table(msgspec.Struct):
    """Options of all kinds.

    Attributes:
        age_ms: Seals by age. Two sentences,
            on two lines.
        size_bytes: Seals by size.
        slots: Slots of the ring.
        order: Order on read.
        token: Credential.
        audited: Reports what was sent.
        plain: no option, as it has no row.

    This is no field: it stands behind them.
    """

    age_ms: Annotated[int, Option("duration", "200ms", 1, 60_000)]
    size_bytes: Annotated[int, Option("size", "8MiB", 1 << 10, 1 << 30)]
    slots: Annotated[int, Option("count", 8, 1, 64)]
    order: Annotated[str, Option("text", "none", choices=("none", "producer"))]
    token: Annotated[str, Option("text", "")]
    audited: Annotated[bool, Option("flag", default=True)]
    plain: int = 0


class Arguments(TypedDict, total=False):
    """What people write, who may leave things open.

    Attributes:
        wait: How long.
        level: A number in words.
        hook: Called.
    """

    wait: Annotated[str | None, Option("duration", None, 1, 60_000)]
    level: Annotated[str, Option("text", "one", read={"one": 1, "two": 2}.__getitem__)]
    hook: Annotated[object, Option("value", None)]


TABLE = options_of(Table)
AGE, SIZE, COUNT, ORDER, TOKEN, AUDITED = TABLE
ARGUMENTS = options_of(Arguments)


def test_what_may_be_left_open():
    """None is what is left open; a row may read its value in its own way."""
    assert defaults(ARGUMENTS) == {"wait_ms": None, "level": 1, "hook": None}
    given = {"wait": "1s", "level": "two", "hook": print}
    assert parse_options(ARGUMENTS, given) == {"wait_ms": 1_000, "level": 2, "hook": print}
    with pytest.raises(ConfigError, match='wait = 5: expected a duration, such as "1m"'):
        parse_options(ARGUMENTS, {"wait": 5})


@pytest.mark.parametrize(
    ("option", "value", "field_value"),
    [
        (AGE, "1.5s", 1_500),
        (SIZE, "1KiB", 1_024),
        (SIZE, 2_000, 2_000),
        (COUNT, "12", 12),
        (COUNT, 12, 12),
        (ORDER, "producer", "producer"),
        (AUDITED, "FALSE", False),
        (AUDITED, True, True),
    ],
)
def test_parse(option, value, field_value):
    """Texts of the command line and values of a TOML file mean the same."""
    assert option.parse(value) == field_value


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        (AGE, 5, 'age = 5: expected a duration, such as "200ms"'),
        (AGE, "5 parsecs", "age: '5 parsecs' is not a duration"),
        (SIZE, None, 'size_bytes = None: expected a size, such as "8MiB"'),
        (COUNT, "many", "slots = 'many': expected a count, such as \"8\""),
        (COUNT, 2.0, 'slots = 2.0: expected a count, such as "8"'),
        (COUNT, True, 'slots = True: expected a count, such as "8"'),
        (AUDITED, "yes", "audited = 'yes': expected a flag, such as \"true\""),
        (AUDITED, 1, 'audited = 1: expected a flag, such as "true"'),
        (ORDER, "key", "order = 'key': must be one of none, producer"),
        (TOKEN, 7, "token = 7: expected a text"),
        (AGE, "0ms", "age = 0ms: must be at least 1ms"),
        (AGE, "2m", "age = 2m: must be at most 1m"),
        (SIZE, "1023B", "size_bytes = 1023B: must be at least 1KiB"),
        (COUNT, 65, "slots = 65: must be at most 64"),
        (Option("count", 1, low=1, name="least"), 0, "least = 0: must be at least 1"),
        (Option("count", 1, high=1, name="most"), 2, "most = 2: must be at most 1"),
    ],
)
def test_refuses_a_wrong_value(option, value, complaint):
    """An error names the option, the value and what was expected, in human units."""
    with pytest.raises(ConfigError) as caught:
        option.parse(value)

    assert str(caught.value).startswith(complaint)


@pytest.mark.parametrize("option", [AGE, SIZE, COUNT])
def test_limits_are_inclusive(option):
    """The limits themselves are allowed; so is the default as people are shown it."""
    assert option.parse(option.show(option.low)) == option.low
    assert option.parse(option.show(option.high)) == option.high
    assert option.parse(option.default_text) == option.parse(option.default)


def test_unknown_option():
    """A misspelt option is refused with the list of those that exist."""
    with pytest.raises(ConfigError) as caught:
        parse_options(TABLE, {"batch_agee": "1s"})

    assert str(caught.value) == (
        "unknown option 'batch_agee'; known are age, audited, order, size_bytes, slots, token"
    )


@given(
    st.sampled_from(TABLE),
    st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.none(), st.binary()),
)
def test_any_value_is_parsed_or_refused(option, value):
    """Whatever a file or a peer says, the answer is a value that holds or the typed error."""
    try:
        parsed = option.parse(value)
    except ConfigError as exc:
        assert str(exc).startswith(option.name)
    else:
        assert option.parse(option.show(parsed)) == parsed
