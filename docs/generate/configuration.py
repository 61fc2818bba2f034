"""The reference of every option, as Markdown, made from the tables that check them.

`make docs` writes it to `docs/configuration.md`; a test keeps that file equal to the tables.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from memq.broker.config import AWS_IAM_OPTIONS, BROKER_OPTIONS, ISSUER_OPTIONS, LISTENER_OPTIONS
from memq.client.consumer.options import CONSUMER_OPTIONS
from memq.client.producer.options import PRODUCER_OPTIONS
from memq.client.profile import PROFILE_OPTIONS
from memq.client.security import SECURITY_OPTIONS
from memq.core.topic import TOPIC_OPTIONS
from memq.spark.options import READ_OPTIONS, WRITE_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memq.core.options import Option

_INTRODUCTION = """\
# Configuration

Generated from the code by `make docs`.

Durations are written like `500ms`, `10s`, `5m`, `2h` or `7d`; sizes like `512B`, `64KiB`, `16MiB`
or `2GiB`. In Python and TOML a size may also be a number of bytes. An unknown option, or a value
outside its limits, is refused with an error that names it. No default means empty, or not set.
"""


_PROFILES = """\
Tables of the client configuration file, one for each cluster. The file is `~/.config/memq.toml`
(`memq.toml` in `XDG_CONFIG_HOME`, if set), or the one in `MEMQ_CONFIG`:

```toml
[profiles.default]
bootstrap = "broker-1:6367,broker-2:6367"
token_file = "memq.token"

[profiles.local]
bootstrap = "127.0.0.1:6367"
```

`memq topic list --profile local` or `MEMQ_PROFILE=local` chooses a profile; otherwise `default`
applies, if it exists. Precedence: flag, variable, profile, default of the option.

- A profile's token and storage options apply only to its own brokers. Give both again if a flag or
  `MEMQ_BOOTSTRAP` names other brokers. A profile without `bootstrap` applies its token to all.
- Python clients and Spark use `MEMQ_TOKEN`, `MEMQ_ZONE`, `MEMQ_STORAGE_OPTIONS` and
  `MEMQ_SECURITY` for any brokers.
  They read `MEMQ_BOOTSTRAP`, and else the profile, only if they are given no brokers.
- In a program `Producer(**profile("local"), topic="clicks")` chooses a profile, after `from memq
  import profile`.

Restrict a file with secrets to its owner (`chmod 600`); `memq` warns if others can read it.\
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
        "Given in the TOML file of `memq broker --config FILE`. An environment variable, such as "
        "`MEMQ_DATA_DIR`,\nwins over the file, and a command-line flag over both.",
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
        "[Spark](spark.md). Limits of\nmicro-batches have no effect on `spark.read`.",
        tuple(READ_OPTIONS.values()),
    ),
    Section(
        "Writing with Spark",
        'Given to a write of `format("memq")`, in any case; see [Spark](spark_apps.md).\n'
        "`bootstrap`, `topic` and `token` are those of reads.",
        tuple(row for name, row in WRITE_OPTIONS.items() if name not in READ_OPTIONS),
    ),
    Section("Profile", _PROFILES, PROFILE_OPTIONS),
    Section(
        "Security",
        "Values of the option `security` of every client, as `ca=ca.pem,cert=me.pem,key=me.key` or "
        "a table;\nsee [Security](security.md).",
        SECURITY_OPTIONS,
    ),
    Section(
        "Listener",
        "A table `[listeners.NAME]` in a broker's file, for an address besides `host` and `port`.",
        LISTENER_OPTIONS,
    ),
    Section(
        "Issuer",
        "A table `[oidc.NAME]` in a broker's file, for who signs tokens by OpenID Connect.",
        ISSUER_OPTIONS,
    ),
    Section(
        "AWS IAM",
        "The table `[aws_iam]` in a broker's file, for clients with AWS identities; see "
        "[Security](security.md).",
        AWS_IAM_OPTIONS,
    ),
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
    head = "| Option | Value | Default | Meaning |\n| --- | --- | --- | --- |"
    return "\n".join([head, *(_row(option) for option in options)])


def _row(option: Option) -> str:
    default = option.shown or (f"`{option.default_text}`" if option.default_text else "")
    meaning = option.doc.replace("|", "\\|")
    return f"| `{option.name}` | {_allowed(option)} | {default} | {meaning} |"


def _allowed(option: Option) -> str:
    """List the choices, or the limits, or else the kind."""
    if option.choices:
        return ", ".join(f"`{choice}`" for choice in option.choices)
    if option.low is None or option.high is None:
        return option.kind
    return f"{option.show(option.low)} to {option.show(option.high)}"


if __name__ == "__main__":
    main(sys.argv[1])
