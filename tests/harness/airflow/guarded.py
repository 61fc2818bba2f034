"""An API server that asks who one is, beside one for which everybody is an administrator."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from tests.harness.airflow.rest import WaitError, until
from tests.harness.airflow.standalone import BIN, end_session

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.harness.airflow.standalone import Airflow

ROLES = ("admin", "viewer")  # a user of each, by the name of the role


class Reply(NamedTuple):
    """What a server answers.

    Attributes:
        status: of HTTP.
        headers: by name.
        text: the body.
        url: where it was found, after redirects.
    """

    status: int
    headers: Mapping[str, str]
    text: str
    url: str


class GuardedServer:
    """Another API server of an Airflow, and its users.

    Args:
        url: of the server.
        passwords: of users by name.
    """

    def __init__(self, url: str, passwords: Mapping[str, str]) -> None:
        self.url = url
        self._passwords = passwords

    def __repr__(self) -> str:
        return f"<GuardedServer {self.url}>"

    def token(self, user: str) -> str:
        """A new token of a user."""
        body = json.dumps({"username": user, "password": self._passwords[user]}).encode()
        request = urllib.request.Request(  # noqa: S310 - our own server
            f"{self.url}/auth/token", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - likewise
            return str(json.loads(answer.read())["access_token"])


def fetch(url: str, *, token: str = "", timeout_s: float = 60) -> Reply:
    """Get an address, whatever the status of the answer."""
    headers = {"Accept": "text/html", **({"Authorization": f"Bearer {token}"} if token else {})}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - our own server
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310 - likewise
            return Reply(answer.status, dict(answer.headers), answer.read().decode(), answer.url)
    except urllib.error.HTTPError as exc:
        with exc:
            return Reply(exc.code, dict(exc.headers), exc.read().decode(), exc.url)


@contextmanager
def guarded_server(airflow: Airflow) -> Iterator[GuardedServer]:
    """Run another API server of an Airflow, that asks who one is.

    Raises:
        WaitError: it ended.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    env = {
        **airflow.env,
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{role}:{role}" for role in ROLES),
    }
    path = airflow.home / "guarded.log"
    with path.open("ab") as log:
        process = subprocess.Popen(
            [str(BIN / "airflow"), "api-server"],
            env=env,
            cwd=airflow.home,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def look() -> bool:
        if process.poll() is not None:
            raise WaitError(path.read_text()[-4000:])
        try:
            return fetch(f"{url}/api/v2/version").status == 200
        except OSError:
            return False

    try:
        until(look, "an API server that asks who one is")
        passwords = airflow.home / "simple_auth_manager_passwords.json.generated"
        yield GuardedServer(url, json.loads(passwords.read_text()))
    finally:
        end_session(process)
