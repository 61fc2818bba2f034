"""Airflow's REST API as a script wants it: trigger, look, wait for something.

A wait ends by what happens: what is waited for comes, or it can no longer come, since a run or
task has ended in another way, or a process of Airflow has died. On a busy machine anything may take
long; so the limit is a backstop against the unforeseen, and no measure of speed. Each call to the
API has a timeout of its own; one that is over counts as nothing seen.
"""

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Collection, Mapping
from http.client import HTTPException
from typing import Any, TypeVar

T = TypeVar("T")

CALL_TIMEOUT_S = 60.0  # an API server that is starved for CPU still answers within this
BACKSTOP_S = 1800.0  # of a wait whose end nothing else brings; ten times what a busy machine took
LOOK_INTERVAL_S = 0.25  # between looks; each costs the API server some milliseconds
PAGE = 100  # what the API gives at most at a time
ENDED = ("success", "failed")  # states that a DAG run does not leave by itself


class RestError(Exception):
    """The API refused a call, or did not answer it; `status` is 0 then."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class WaitError(Exception):
    """What was waited for comes no more, or did not come in time."""


def until(
    look: Callable[[], T | None],
    what: str,
    *,
    timeout_s: float = BACKSTOP_S,
    interval_s: float = LOOK_INTERVAL_S,
) -> T:
    """Look again and again until it gives something true, and return that.

    An API that does not answer (its server may be about to be restarted) counts as nothing. A look
    that knows that nothing more will come raises `WaitError`.

    Raises:
        WaitError: it did not within the time; the message says what was last seen.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            seen = look()
        except RestError as exc:
            if exc.status not in (0, 404, 500, 503):
                raise
            seen, shown = None, str(exc)
        else:
            shown = repr(seen)
        if seen:
            return seen
        if time.monotonic() > deadline_s:
            raise WaitError(f"not within {timeout_s:g} s: {what}; last seen: {shown}")
        time.sleep(interval_s)


def asked(call: Callable[[], T]) -> T:
    """What a call gives: again when Airflow's database was busy, or its server dead."""
    return until(call, "an answer of Airflow")


class Rest:
    """Calls to one API server where everybody is an administrator.

    Args:
        url: of the server, such as `http://127.0.0.1:8080`.
        check: asked before each call; raises `WaitError` when what serves it has died.
    """

    def __init__(self, url: str, check: Callable[[], None]) -> None:
        self.url = url
        self._check = check
        self._token = ""

    def __repr__(self) -> str:
        return f"<Rest {self.url}>"

    # -- calls ------------------------------------------------------------------------------

    def call(self, method: str, path: str, body: object = None, *, root: str = "/api/v2") -> Any:
        """The answer to a call; `path` is what follows `root`.

        Raises:
            RestError: it was refused, or not answered.
            WaitError: a process of Airflow has died.
        """
        self._check()
        try:
            return self._call(method, f"{root}{path}", body)
        except RestError as exc:
            if exc.status != 401:
                raise
        self._token = self._call("GET", "/auth/token", None)["access_token"]
        return self._call(method, f"{root}{path}", body)

    def get(self, path: str, **query: object) -> Any:
        """The answer to a GET."""
        text = urllib.parse.urlencode(query)
        return self.call("GET", f"{path}?{text}" if text else path)

    def all(self, path: str, name: str, **query: object) -> list[dict[str, Any]]:
        """Every item of a list that comes in pages."""
        found: list[dict[str, Any]] = []
        while True:
            page = self.get(path, limit=PAGE, offset=len(found), **query)
            found += page[name]
            if not page[name] or len(found) >= page["total_entries"]:
                return found

    def health(self) -> dict[str, str]:
        """State of each component: "healthy", "unhealthy" or "None" where it never ran."""
        return {name: str(each["status"]) for name, each in self.get("/monitor/health").items()}

    # -- DAGs and runs ----------------------------------------------------------------------

    def wait_for_dag(self, dag_id: str) -> dict[str, Any]:
        """A DAG, as soon as its file was parsed."""

        def look() -> dict[str, Any]:
            if errors := self.all("/importErrors", "import_errors"):
                raise WaitError("\n".join(each["stack_trace"] for each in errors))
            return dict(self.get(f"/dags/{dag_id}"))

        return until(look, f"DAG {dag_id}")

    def pause(self, dag_id: str, *, paused: bool = True) -> None:
        """Pause a DAG, or let it go on."""
        self.call("PATCH", f"/dags/{dag_id}", {"is_paused": paused})

    def trigger(
        self,
        dag_id: str,
        *,
        conf: Mapping[str, object] | None = None,
        partition_key: str | None = None,
    ) -> str:
        """Start a run of a DAG, and return its id."""
        body: dict[str, object] = {"logical_date": None, "conf": dict(conf or {})}
        if partition_key is not None:
            body["partition_key"] = partition_key
        return str(self.call("POST", f"/dags/{dag_id}/dagRuns", body)["dag_run_id"])

    def runs(self, dag_id: str, **query: object) -> list[dict[str, Any]]:
        """The runs of a DAG, oldest first."""
        return self.all(f"/dags/{dag_id}/dagRuns", "dag_runs", order_by="id", **query)

    def run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """One run."""
        return dict(self.get(f"/dags/{dag_id}/dagRuns/{_quoted(run_id)}"))

    def tasks(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        """States of a run's tasks by task id; a mapped one is called `task[index]`."""
        path = f"/dags/{dag_id}/dagRuns/{_quoted(run_id)}/taskInstances"
        return {_name(each): each["state"] for each in self.all(path, "task_instances")}

    def task(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> dict[str, Any]:
        """One task instance: state, try_number, pid, start_date and more."""
        path = f"/dags/{dag_id}/dagRuns/{_quoted(run_id)}/taskInstances/{task_id}"
        return dict(self.get(path if map_index < 0 else f"{path}/{map_index}"))

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        """What a task returned, or pushed under another key."""
        path = f"/dags/{dag_id}/dagRuns/{_quoted(run_id)}/taskInstances/{task_id}/xcomEntries/{key}"
        return self.get(path, deserialize="true")["value"]

    def log(self, dag_id: str, run_id: str, task_id: str) -> str:
        """The log of a task's last try, as JSON lines in one text."""
        try_number = max(1, self.task(dag_id, run_id, task_id)["try_number"])
        path = f"/dags/{dag_id}/dagRuns/{_quoted(run_id)}/taskInstances/{task_id}/logs/{try_number}"
        content = self.get(path)["content"]
        return "\n".join(json.dumps(line) for line in content)

    def wait_for_log(self, dag_id: str, run_id: str, task_id: str, text: str) -> None:
        """Wait until the log of a task's last try has a text; it may be written late."""
        what = f"{text!r} in the log of {task_id}"
        until(lambda: text in self.log(dag_id, run_id, task_id), what)

    def wait_for_run(
        self, dag_id: str, run_id: str, *, states: Collection[str] = ENDED
    ) -> dict[str, Any]:
        """A run, as soon as it is in one of the states.

        Raises:
            WaitError: it ended in another one, or is in none of them within the time.
        """

        def look() -> dict[str, Any] | None:
            run = self.run(dag_id, run_id)
            if run["state"] in states:
                return run
            if run["state"] in ENDED:
                raise WaitError(f"it ended as {run['state']!r}, and will not be in {states}")
            return None

        try:
            return until(look, f"run {run_id} of {dag_id} in {states}")
        except WaitError as exc:
            raise WaitError(f"{exc}; its tasks are {self.tasks(dag_id, run_id)}") from exc

    # -- assets -----------------------------------------------------------------------------

    def asset_id(self, name: str) -> int:
        """The id of an asset.

        Raises:
            RestError: there is none of that name.
        """
        for each in self.all("/assets", "assets"):
            if each["name"] == name:
                return int(each["id"])
        raise RestError(f"no asset {name!r}", 404)

    def asset_events(self, name: str) -> list[dict[str, Any]]:
        """The events of an asset, oldest first."""
        return self.all(
            "/assets/events", "asset_events", asset_id=self.asset_id(name), order_by="timestamp"
        )

    def _call(self, method: str, path: str, body: object) -> Any:
        request = urllib.request.Request(  # noqa: S310 - our own server
            self.url + path,
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json", "Accept": "application/json"},
            method=method,
        )
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with urllib.request.urlopen(request, timeout=CALL_TIMEOUT_S) as answer:  # noqa: S310
                text = answer.read()
        except urllib.error.HTTPError as exc:
            with exc:
                text = exc.read()
            raise RestError(f"{method} {path}: {exc.code} {text[:2000]!r}", exc.code) from exc
        except (OSError, HTTPException) as exc:
            raise RestError(f"{method} {path}: {exc!r}") from exc
        return json.loads(text) if text else None


def _quoted(run_id: str) -> str:
    return urllib.parse.quote(run_id, safe="")


def _name(task: dict[str, Any]) -> str:
    index = task["map_index"]
    return task["task_id"] if index < 0 else f"{task['task_id']}[{index}]"
