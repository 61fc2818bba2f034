"""`memq debug bundle`: what others need to help, in one file, without secrets."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import tarfile
import time
import urllib.error
import urllib.request
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import click
import msgspec

from memq.cli.command import Group, connection_options, option
from memq.cli.output import notice
from memq.client.security import Security
from memq.core.defaults import DEFAULT_ADMIN_PORT
from memq.core.units import counted, format_size_bytes
from memq.core.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memq.core.named_values import NamedValues

MAX_BUNDLE_BYTES = 64 << 20  # of all sections, as read: what can be sent by mail once compressed
MAX_SECTION_BYTES = 8 << 20  # of each, so that none takes the room of the others
CALL_S = 5.0  # for each question, to the brokers and by HTTP
BUNDLE_S = 60.0  # after which nothing more is asked
HIDDEN = "***"
UNAVAILABLE = 503
MIN_SECRET = 4

# What logs and pages of others may have, whatever made them.
_SECRET = re.compile(
    r"(?i)((?:secret|token|passw\w*|pwd|access_key|account_key|authorization)[\w.-]*[\"']?\s*[=:]\s*"
    r"(?:bearer |basic )?[\"']?)([^\s\"',;&]+)|//[^/@\s]+@"
)

Section = tuple[str, "Callable[[], Any]"]


@click.group(cls=Group)
def debug() -> None:
    """Collect what others need to help you."""


@debug.command(
    epilog="""
memq debug bundle
memq debug bundle --output /tmp/b.tar.gz --admin http://broker-1:6368 --log broker.log
"""
)
@option(
    "--output",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    default="memq-debug.tar.gz",
    help="Where the bundle goes.",
)
@option(
    "--admin",
    multiple=True,
    metavar="URL",
    help="Admin HTTP of a broker; without one, port 6368 of each broker.",
)
@option(
    "--log",
    multiple=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="File whose last 8 MiB are put in.",
)
@connection_options
def bundle(*, file: Path, admin: tuple[str, ...], log: tuple[Path, ...], **brokers: Any) -> None:
    """Collect status, options, metrics, topics and lag.

    Secrets are left out. What could not be had says why in its place. Nothing is sent anywhere.
    """
    from memq.client.admin import AdminClient  # noqa: PLC0415 - loads Arrow

    secrets = _secrets(**brokers)
    left, deadline_s, failed = MAX_BUNDLE_BYTES, time.monotonic() + BUNDLE_S, 0
    with (
        AdminClient(**brokers, client="memq debug", request_timeout_s=CALL_S) as client,
        tarfile.open(file, "w:gz") as made,
    ):
        for name, read in _sections(client, admin, log, **brokers):
            try:
                content = _within(deadline_s - time.monotonic(), read)
                text = content if isinstance(content, str) else _json(content)
            except Exception as exc:  # noqa: BLE001 - the bundle says so, and has the rest
                failed, text = failed + 1, f"not in the bundle: {type(exc).__name__}: {exc}\n"
            data = _hidden(text, secrets).encode(errors="replace")
            if len(data) > (limit := min(left, MAX_SECTION_BYTES)):
                data = b"(the beginning is left out)\n" + data[len(data) - limit :]
            left = max(0, left - len(data))
            entry = tarfile.TarInfo(f"memq-debug/{name}")
            entry.size, entry.mtime = len(data), int(time.time())
            made.addfile(entry, io.BytesIO(data))
    size = format_size_bytes(file.stat().st_size)
    notice(f"{file}: {size}" + (f"; {counted(failed, 'section')} say why not" if failed else ""))


def _within(limit_s: float, read: Callable[[], Any]) -> Any:
    """Return what a section has, if that comes in time."""
    answers: list[Any] = []
    errors: list[Exception] = []

    def ask() -> None:
        try:
            answers.append(read())
        except Exception as exc:  # noqa: BLE001 - raised below
            errors.append(exc)

    # A daemon, so that the command ends though an answer never comes.
    asking = Thread(target=ask, name="memq-debug", daemon=True)
    asking.start()
    asking.join(max(0.0, limit_s))
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError(f"not within the {BUNDLE_S:g} s that a bundle may take")
    return answers[0]


def _sections(
    client: Any, admin: tuple[str, ...], logs: tuple[Path, ...], *, token: str, **brokers: Any
) -> Iterator[Section]:
    yield "versions.json", _versions
    yield "status.json", lambda: client.status(CALL_S)._asdict()
    yield "cluster.json", client.describe_cluster
    yield "topics.json", lambda: [each.config for each in client.list_topics()]
    yield "groups.json", client.groups
    yield "lag.json", client.lag
    urls = admin or _urls(client)
    for number, url in enumerate(urls, 1):
        for page in ("status", "metrics", "ready"):
            name = f"{re.sub('[^a-zA-Z0-9.]+', '-', url)}-{number}-{page}.txt"
            yield name, partial(_page, f"{url}/{page}", token, **brokers)
    for number, path in enumerate(logs, 1):
        yield f"log-{number}-{path.name}", partial(_tail, path)


def _urls(client: Any) -> list[str]:
    """Return where the admin HTTP of each broker is by default; none when nobody answers."""
    try:
        hosts = [each.address.rpartition(":")[0] for each in client.describe_cluster().brokers]
    except Exception:  # noqa: BLE001 - the section `cluster.json` says why
        return []
    return [f"http://{host}:{DEFAULT_ADMIN_PORT}" for host in dict.fromkeys(hosts)]


def _versions() -> dict[str, Any]:
    names = ("pyarrow", "msgspec", "aiohttp", "obstore", "confluent-kafka", "kazoo", "pyspark")
    found = {each.name: each.version for each in distributions() if each.name in names}
    return {"memq": __version__, "python": platform.python_version(), "packages": found} | {
        "system": platform.platform()
    }


def _page(url: str, token: str, *, security: NamedValues, **_: Any) -> str:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - as the user gave it
    context = Security.parse(security).context() if url.startswith("https:") else None
    try:
        answer = urllib.request.urlopen(request, timeout=CALL_S, context=context)  # noqa: S310
    except urllib.error.HTTPError as exc:
        if exc.code != UNAVAILABLE:
            raise
        answer = exc  # /ready says why
    with answer:
        data: bytes = answer.read(MAX_SECTION_BYTES)
    return data.decode(errors="replace")


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - MAX_SECTION_BYTES))
        return file.read(MAX_SECTION_BYTES).decode(errors="replace")


def _json(value: object) -> str:
    return json.dumps(msgspec.to_builtins(value, str_keys=True), indent=1, default=str) + "\n"


def _secrets(*, token: str, security: NamedValues, **_: Any) -> list[str]:
    """Return what this machine knows to be secret, the longest first."""
    known = Security.parse(security)
    found = {token, known.password, known.token()}
    found |= {known.secret()} if known.user else set()
    found |= {value for name, value in os.environ.items() if _SECRET.search(f"{name}=x")}
    # What is shorter is no secret, and stands in other words too.
    return sorted((each for each in found if len(each) >= MIN_SECRET), key=len, reverse=True)


def _hidden(text: str, secrets: list[str]) -> str:
    for each in secrets:
        text = text.replace(each, HIDDEN)
    return _SECRET.sub(lambda found: (found[1] or "//") + HIDDEN + ("" if found[1] else "@"), text)
