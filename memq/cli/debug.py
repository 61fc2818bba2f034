"""`memq debug bundle`: what others need to help, in one file, without secrets."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import tarfile
import time
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import click
import msgspec

from memq.cli.command import Group, connection_options, option
from memq.cli.output import notice
from memq.client.security import Security
from memq.core.defaults import DEFAULT_ADMIN_PORT
from memq.core.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memq.core.named_values import NamedValues

MAX_BUNDLE_BYTES = 64 << 20  # of all sections, as read: what can be sent by mail once compressed
MAX_SECTION_BYTES = 8 << 20  # of each, so that none takes the room of the others
CALL_S = 5.0  # for each question, to the brokers and by HTTP
BUNDLE_S = 60.0  # after which nothing more is asked
MIN_SECRET = 4  # characters; what is shorter is no secret, and stands in other words too

_PACKAGES = ("pyarrow", "msgspec", "aiohttp", "obstore", "confluent-kafka", "kazoo", "pyspark")

# What logs and pages of others may have, whatever made them.
_SECRET = re.compile(
    r"(?i)((?:secret|token|passw\w*|pwd|access_key|account_key|authorization)[\w.-]*[\"']?\s*[=:]\s*"
    r"(?:bearer |basic )?[\"']?)([^\s\"',;&]+)|(//)[^/@\s]+(?=@)"
)


@click.group(cls=Group)
def debug() -> None:
    """Collect what others need to help you."""


_path = click.Path(dir_okay=False, path_type=Path)
_ADMIN = "Admin HTTP of a broker; without one, port 6368 of each in --bootstrap."


@debug.command(
    epilog="""
memq debug bundle
memq debug bundle --output /tmp/b.tar.gz --admin http://broker-1:6368 --log broker.log
"""
)
@option("--output", "file", type=_path, default="memq-debug.tar.gz", help="Where it goes.")
@option("--admin", multiple=True, metavar="URL", help=_ADMIN)
@option("--log", multiple=True, type=_path, help="File whose last 8 MiB are put in.")
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
            content = _within(deadline_s - time.monotonic(), read)
            if isinstance(content, Exception):
                failed += 1
                content = f"not in the bundle: {type(content).__name__}: {content}\n"
            text = content if isinstance(content, str) else _json(content)
            data = _hidden(text, secrets).encode(errors="replace")
            if len(data) > (limit := min(left, MAX_SECTION_BYTES)):
                data = b"(the beginning is left out)\n" + data[len(data) - limit :]
            left = max(0, left - len(data))
            entry = tarfile.TarInfo(f"memq-debug/{name}")
            entry.size, entry.mtime = len(data), int(time.time())
            made.addfile(entry, io.BytesIO(data))
    notice(f"{file} is made" + (f"; {counted(failed, 'section')} say why not" if failed else ""))


def _within(limit_s: float, read: Callable[[], Any]) -> Any:
    """Return what a section has, or the error in its place."""
    answers: list[Any] = []

    def ask() -> None:
        try:
            answers.append(read())
        except Exception as exc:  # noqa: BLE001 - the bundle says so, and has the rest
            answers.append(exc)

    # A daemon, so that the command ends though an answer never comes.
    asking = Thread(target=ask, name="memq-debug", daemon=True)
    asking.start()
    asking.join(max(0.0, limit_s))
    return answers[0] if answers else TimeoutError(f"a bundle may take {BUNDLE_S:g} s, and has")


def _sections(
    client: Any, admin: tuple[str, ...], logs: tuple[Path, ...], *, bootstrap: str, **brokers: Any
) -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "versions.json", _versions
    yield "status.json", lambda: client.status(CALL_S)._asdict()
    yield "topics.json", lambda: [each.config for each in client.list_topics()]
    yield "groups.json", client.groups
    yield "lag.json", client.lag
    hosts = [each.strip().rpartition(":")[0] for each in bootstrap.split(",")]
    for number, url in enumerate(admin or [f"http://{h}:{DEFAULT_ADMIN_PORT}" for h in hosts], 1):
        for page in ("status", "metrics"):
            yield f"admin-{number}-{page}.txt", partial(_page, f"{url}/{page}", **brokers)
    for number, path in enumerate(logs, 1):
        yield f"log-{number}.txt", partial(_tail, path)


def _versions() -> dict[str, Any]:
    from importlib.metadata import distributions  # noqa: PLC0415 - loads email

    from memq.core.version import __version__  # noqa: PLC0415 - as well

    packages = {each.name: each.version for each in distributions() if each.name in _PACKAGES}
    own = {"memq": __version__, "python": platform.python_version(), "on": platform.platform()}
    return own | {"packages": packages}


def _page(url: str, *, token: str, security: NamedValues) -> str:
    import urllib.request  # noqa: PLC0415 - loads OpenSSL

    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - as the user gave it
    context = Security.parse(security).context() if url.startswith("https:") else None
    with urllib.request.urlopen(request, timeout=CALL_S, context=context) as answer:  # noqa: S310
        return f"{url}\n{answer.read(MAX_SECTION_BYTES).decode(errors='replace')}"


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - MAX_SECTION_BYTES))
        return f"{path}\n{file.read(MAX_SECTION_BYTES).decode(errors='replace')}"


def _json(value: object) -> str:
    return json.dumps(msgspec.to_builtins(value, str_keys=True), indent=1, default=str) + "\n"


def _secrets(*, token: str, security: NamedValues, **_: Any) -> list[str]:
    """Return what this machine knows to be secret, the longest first."""
    known = Security.parse(security)
    found = {token, known.token(), known.secret() if known.user else ""}
    found |= {value for name, value in os.environ.items() if _SECRET.search(f"{name}=x")}
    return sorted((each for each in found if len(each) >= MIN_SECRET), key=len, reverse=True)


def _hidden(text: str, secrets: list[str]) -> str:
    for each in secrets:
        text = text.replace(each, "***")
    return _SECRET.sub(lambda found: f"{found[1] or found[3]}***", text)
