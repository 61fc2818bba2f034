"""The reference of every option, as Markdown, made from the tables that check them.

`make docs` writes it to `docs/configuration.md`; a test keeps that file equal to the tables.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from memq.broker.config import BROKER_OPTIONS
from memq.client.consumer.options import CONSUMER_OPTIONS
from memq.client.producer.options import PRODUCER_OPTIONS
from memq.client.profile import PROFILE_OPTIONS
from memq.core.topic import TOPIC_OPTIONS
from memq.spark.options import READ_OPTIONS, WRITE_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memq.core.options import Option

_INTRODUCTION = """\
# Configuration

This page is generated from the code by `make docs`.

Durations are written like `500ms`, `10s`, `5m`, `2h` or `7d`; sizes like `512B`, `64KiB`, `16MiB`
or `2GiB`. From Python, and in TOML, a size may also be a number of bytes. A value outside its
limits, and an option that does not exist, is refused with an error that names it.
"""


_PROFILES = """\
Tables of the client configuration file, one for each cluster you work with. The file is
`~/.config/memq.toml` (`memq.toml` in `XDG_CONFIG_HOME`, where that is set), or what `MEMQ_CONFIG`
names:

```toml
[profiles.default]
bootstrap = "broker-1:6367,broker-2:6367"
token_file = "memq.token"

[profiles.local]
bootstrap = "127.0.0.1:6367"
```

`memq topic list --profile local` and `MEMQ_PROFILE=local` choose one; otherwise it is `default`, if
there is one. A flag wins over a variable, a variable over the profile, and the profile over the
option's default. The token of a profile is only sent to its own brokers: where a flag or
`MEMQ_BOOTSTRAP` names others, give their token as well. A profile without `bootstrap` has a token
for all.

Python clients, and Spark, that are given no brokers take them from `MEMQ_BOOTSTRAP`, or else from
the profile; without a token they show that of `MEMQ_TOKEN`, whatever the brokers.
`Producer(**profile("local"), topic="clicks")`, with `from memq import profile`, chooses one in the
program. A client that is given brokers does not look into the file.

[Readers](object-storage.md#options-of-readers) that are given no options of the storage take those
of `MEMQ_STORAGE_OPTIONS`, whatever their brokers, or else those of the profile that names the
brokers. On the command line, too, a profile's options are used with its own brokers only.

Keep a file that holds a token, or a secret for the storage, to yourself (`chmod 600`); `memq` warns
when others can read it.\
"""


class Section(NamedTuple):
    """One table of options as the reference shows it.

    Attributes:
        title: its heading.
        text: where these options are given.
        options: the table.
    """

    title: str
    text: str
    options: tuple[Option, ...]


SECTIONS = (
    Section(
        "Topic",
        "Given when a topic is created or altered, with `memq topic` or from Python.",
        TOPIC_OPTIONS,
    ),
    Section(
        "Broker",
        "Given in the TOML file of `memq broker --config FILE`. An environment variable (`MEMQ_` "
        "and the\nname in capitals, such as `MEMQ_DATA_DIR`) wins over the file, and a "
        "command-line flag over both.",
        BROKER_OPTIONS,
    ),
    Section(
        "Producer",
        "Keyword arguments of `Producer` and `AsyncProducer`; see [Clients](clients.md#producer). "
        "`memq produce` has flags\nfor some of them.",
        PRODUCER_OPTIONS,
    ),
    Section(
        "Consumer",
        "Keyword arguments of `Consumer` and `AsyncConsumer`; see [Clients](clients.md#consumer).",
        CONSUMER_OPTIONS,
    ),
    Section(
        "Reading with Spark",
        'Given to `spark.read` and `spark.readStream` of `format("memq")`, in any case; see '
        "[Spark](spark.md). The limits of\nmicro-batches have no effect on `spark.read`, so that "
        "one set of options serves both.",
        tuple(READ_OPTIONS.values()),
    ),
    Section(
        "Writing with Spark",
        'Given to a write of `format("memq")`, in any case; see '
        "[Writing from Spark](spark_apps.md).",
        tuple(WRITE_OPTIONS.values()),
    ),
    Section("Profile", _PROFILES, PROFILE_OPTIONS),
)


def render() -> str:
    """The whole page."""
    return "\n".join([_INTRODUCTION, *(_section(section) for section in SECTIONS)])


def main(path: str) -> None:
    """Write the page to a file."""
    Path(path).write_text(render(), encoding="utf-8")


def _section(section: Section) -> str:
    return f"## {section.title}\n\n{section.text}\n\n{_table(section.options)}\n"


def _table(options: Iterable[Option]) -> str:
    head = "| Option | Kind | Default | Allowed | Meaning |\n| --- | --- | --- | --- | --- |"
    return "\n".join([head, *(_row(option) for option in options)])


def _row(option: Option) -> str:
    empty = "none" if option.default is None else "empty"
    default = option.shown or (f"`{option.default_text}`" if option.default_text else empty)
    meaning = option.doc.replace("|", "\\|")
    return f"| `{option.name}` | {option.kind} | {default} | {_allowed(option)} | {meaning} |"


def _allowed(option: Option) -> str:
    """What values pass: the choices, or the limits."""
    if option.kind == "flag":
        return "`true`, `false`"
    if option.choices:
        return ", ".join(f"`{choice}`" for choice in option.choices)
    if option.low is None or option.high is None:
        return ""
    return f"{option.show(option.low)} to {option.show(option.high)}"


if __name__ == "__main__":
    main(sys.argv[1])
