"""Tables of options: one row says an option's name, type, default, limits and meaning.

A table is a class whose fields are annotated with rows, and whose docstring says under "Attributes"
what each means, in the words of `--help` and of the reference:

    class TopicConfig(msgspec.Struct):
        batch_age_ms: Annotated[int, Option("duration", "200ms", 1, 10 * MINUTE_MS)]

The row serves the configuration file, the command line, the environment, the checks and the
generated reference, so they cannot disagree. An option's human name (`batch_age`, with the value
"500ms") maps to a plain field whose name carries the unit (`batch_age_ms`, 500). The class may have
the fields, as above, or be the `TypedDict` of what people write.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from memq.core.units import (
    format_duration_ms,
    format_size_bytes,
    parse_duration_ms,
    parse_size_bytes,
)
from memq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


Kind = Literal["duration", "size", "count", "text", "flag", "value"]


@dataclass(frozen=True)
class Option:
    """One option as people write it.

    Attributes:
        kind: how the value is read: "duration" and "size" take human strings, a size also a number
            of bytes; "value" is for what only Python can give.
        default: the default as people would write it; None where the option may be left open.
        low: least value allowed, in the field's unit.
        high: greatest value allowed.
        choices: the only texts allowed, when there is such a list.
        read: gives the field's value, and refuses what is wrong, in place of the kind's own rules.
        shown: what the reference says of a default that is worked out.
        name: what people write; the field of a duration adds `_ms`, sizes are named `…_bytes`.
        doc: one or two sentences of meaning, for `--help` and the reference.
    """

    kind: Kind
    default: str | int | bool | None
    low: int | None = None
    high: int | None = None
    choices: tuple[str, ...] = ()
    read: Callable[[Any], Any] | None = None
    shown: str = ""
    name: str = ""
    doc: str = ""

    @property
    def field(self) -> str:
        """Name of the field that holds the value."""
        return f"{self.name}_ms" if self.kind == "duration" else self.name

    @property
    def default_text(self) -> str:
        """The default as a person would write it; empty where there is none."""
        return "" if self.default is None else _plain(self.default)

    def parse(self, value: object) -> Any:
        """Parse what a person wrote into the field's value.

        Raises:
            ConfigError: the value is of the wrong type or outside its limits.
        """
        if value is None and self.default is None:
            return None
        return self.check(self._read(value)) if self.read is None else self.read(value)

    def check(self, value: Any) -> Any:
        """Check that a field's value is within its limits, and return it.

        Raises:
            ConfigError: it is not.
        """
        if self.choices and value not in self.choices:
            raise ConfigError(f"{self.name} = {value!r}: must be one of {', '.join(self.choices)}")
        if self.low is not None and value < self.low:
            raise ConfigError(
                f"{self.name} = {self.show(value)}: must be at least {self.show(self.low)}"
            )
        if self.high is not None and value > self.high:
            raise ConfigError(
                f"{self.name} = {self.show(value)}: must be at most {self.show(self.high)}"
            )
        return value

    def show(self, value: Any) -> str:
        """Format a field's value as a person would write it."""
        if self.kind == "duration":
            return format_duration_ms(value)
        return format_size_bytes(value) if self.kind == "size" else _plain(value)

    def _read(self, value: object) -> Any:
        if isinstance(value, str):
            return self._read_text(value)
        wanted = {"flag": bool, "count": int, "size": int}.get(self.kind)
        if self.kind != "value" and type(value) is not wanted:
            raise self._wrong(value)
        return value

    def _read_text(self, text: str) -> Any:
        try:
            match self.kind:
                case "duration":
                    return parse_duration_ms(text)
                case "size":
                    return parse_size_bytes(text)
                case "count":
                    return int(text)
                case "flag":
                    return {"true": True, "false": False}[text.lower()]
                case _:
                    return text
        except (ValueError, KeyError) as exc:
            raise self._wrong(text) from exc
        except ConfigError as exc:
            raise ConfigError(f"{self.name}: {exc}") from exc

    def _wrong(self, value: object) -> ConfigError:
        example = self.default_text or ("" if self.high is None else self.show(self.high))
        such_as = f', such as "{example}"' if example else ""
        return ConfigError(f"{self.name} = {value!r}: expected a {self.kind}{such_as}")


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def options_of(described: type) -> tuple[Option, ...]:
    """Return the rows of a class, in the order of its fields, with their names and meanings."""
    meanings = {
        field: meaning
        for each in reversed(described.__mro__)
        for field, meaning in field_meanings(each).items()
    }
    return tuple(
        replace(
            row,
            name=field.removesuffix("_ms") if row.kind == "duration" else field,
            doc=meanings.get(field, ""),
        )
        for field, hint in get_type_hints(described, include_extras=True).items()
        for row in getattr(hint, "__metadata__", ())
    )


def field_meanings(described: type) -> dict[str, str]:
    """Return what the docstring of a class says about each of its attributes, as one line each."""
    _, _, text = inspect.cleandoc(described.__doc__ or "").partition("Attributes:\n")
    entries = re.split(r"^    (?=\w+: )", text.partition("\n\n")[0], flags=re.MULTILINE)
    pairs = [" ".join(entry.split()).partition(": ") for entry in entries[1:]]
    return {name: meaning for name, _, meaning in pairs}


def parse_options(table: Iterable[Option], given: Mapping[str, object]) -> dict[str, Any]:
    """Fields and values of the options given; only those that were given.

    Raises:
        ConfigError: an option is unknown (the message lists the known ones) or its value is bad.
    """
    known = {option.name: option for option in table}
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ConfigError(f"unknown option {unknown[0]!r}; known are {', '.join(sorted(known))}")
    return {known[name].field: known[name].parse(value) for name, value in given.items()}


def defaults(table: Iterable[Option]) -> dict[str, Any]:
    """Fields and values of a table when nothing is given."""
    return {option.field: option.parse(option.default) for option in table}
