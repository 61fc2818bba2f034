"""Tables of options: one row says an option's name, type, default, limits and meaning.

The same row serves the configuration file, the command line, the environment, the checks and the
generated reference, so they cannot disagree. An option's human name (`batch_age`, with the value
"500ms") maps to a plain field whose name carries the unit (`batch_age_ms`, 500).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from memq.core.units import (
    format_duration_ms,
    format_size_bytes,
    parse_duration_ms,
    parse_size_bytes,
)
from memq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Kind = Literal["duration", "size", "count", "text", "flag"]


@dataclass(frozen=True)
class Option:
    """One option as people write it.

    Attributes:
        name: what people write; the field of a duration adds `_ms`, sizes are named `…_bytes`.
        kind: how the value is read: "duration" and "size" take human strings.
        default: the default as people would write it.
        doc: one sentence of meaning, for `--help` and the reference.
        low: least value allowed, in the field's unit; None for texts.
        high: greatest value allowed.
        choices: the only texts allowed, when there is such a list.
    """

    name: str
    kind: Kind
    default: str | int | bool
    doc: str
    low: int | None = None
    high: int | None = None
    choices: tuple[str, ...] = ()

    @property
    def field(self) -> str:
        """Name of the field that holds the value."""
        return f"{self.name}_ms" if self.kind == "duration" else self.name

    @property
    def default_text(self) -> str:
        """The default as a person would write it."""
        return str(self.default).lower() if self.kind == "flag" else str(self.default)

    def parse(self, value: object) -> Any:
        """The field's value from what a person wrote.

        Raises:
            ConfigError: the value is of the wrong type or outside its limits.
        """
        parsed = self._read(value)
        if self.choices and parsed not in self.choices:
            raise ConfigError(f"{self.name} = {value!r}: must be one of {', '.join(self.choices)}")
        if self.low is not None and parsed < self.low:
            raise ConfigError(
                f"{self.name} = {self.show(parsed)}: must be at least {self.show(self.low)}"
            )
        if self.high is not None and parsed > self.high:
            raise ConfigError(
                f"{self.name} = {self.show(parsed)}: must be at most {self.show(self.high)}"
            )
        return parsed

    def show(self, value: Any) -> str:
        """A field's value as a person would write it."""
        if self.kind == "duration":
            return format_duration_ms(value)
        if self.kind == "size":
            return format_size_bytes(value)
        return str(value).lower() if self.kind == "flag" else str(value)

    def _read(self, value: object) -> Any:
        if isinstance(value, str):
            return self._read_text(value)
        wanted = {"flag": bool, "count": int}.get(self.kind)
        if wanted is None or type(value) is not wanted:
            raise ConfigError(f"{self.name} = {value!r}: expected a {self.kind}{self._example()}")
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
                case "text":
                    return text
        except (ValueError, KeyError) as exc:
            raise ConfigError(
                f"{self.name} = {text!r}: expected a {self.kind}{self._example()}"
            ) from exc
        except ConfigError as exc:
            raise ConfigError(f"{self.name}: {exc}") from exc

    def _example(self) -> str:
        return f', such as "{self.default_text}"' if self.default_text else ""


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
