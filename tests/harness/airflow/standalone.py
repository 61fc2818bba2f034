"""A real Airflow on this machine: what `airflow standalone` runs, each part a process of its own.

`airflow standalone` starts an API server, a scheduler, a DAG processor and a triggerer as child
processes, on SQLite, and never starts one again that died. Here the same four are started by this
class, so that each can be killed and started again as an operator's supervisor would do it. All
listens on free ports of the loopback, everything is kept in one folder, and nothing is left running
when the context ends: each part leads a session of its own, and all processes of it are killed.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_urlsafe
from typing import Self

from tests.harness.airflow.rest import BACKSTOP_S, Rest, RestError, WaitError, until
from tests.harness.ports import free_ports

COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")
HEALTHY = ("scheduler", "dag_processor", "triggerer")  # on a page of the API server

STOP_TIMEOUT_S = 5.0  # after SIGTERM; what does not end by then is killed
KILL_TIMEOUT_S = 60.0  # after SIGKILL, for the kernel of a busy machine
BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[3]
QUICK = {
    # Minutes by default; shorter here, so that a killed process is noticed soon.
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "15",
    "AIRFLOW__SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "2",
    "AIRFLOW__WORKERS__TASK_HEARTBEAT_INTERVAL": "5",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "3",
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
    # And what a user leaves at half a minute, which a busy machine passes.
    "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "900",
    "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "1200",
    "AIRFLOW__DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "2",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "30",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONNECT_ARGS": f"{__package__}.patient_sqlite.CONNECT_ARGS",
}


class Airflow:
    """A running Airflow; it serves when `start` (or `with`) returns.

    Args:
        home: folder for its database, configuration and logs.
        dags: folder with the DAG files; made when it is not there.
        env: more environment for all its processes, such as `AIRFLOW_CONN_MEMQ_DEFAULT`.
        spares: second schedulers and triggerers, such as `scheduler-2`.

    Attributes:
        url: of the UI and the REST API.
        rest: the REST API.
        env: the environment of its processes.
    """

    def __init__(
        self,
        home: str | Path,
        *,
        dags: str | Path,
        env: Mapping[str, str] | None = None,
        spares: Sequence[str] = (),
    ) -> None:
        self.components = (*COMPONENTS, *spares)
        self.home = Path(home).absolute()
        self.dags = Path(dags).absolute()
        port, trigger_log_port, worker_log_port = free_ports(3)
        self.url = f"http://127.0.0.1:{port}"
        self.rest = Rest(self.url, self.check)
        self.env = {
            **{name: value for name, value in os.environ.items() if "AIRFLOW" not in name},
            **QUICK,
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": "4",  # task processes at a time
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__FERNET_KEY": "",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__SECRET_KEY": token_urlsafe(24),
            "AIRFLOW__API_AUTH__JWT_SECRET": token_urlsafe(48),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(trigger_log_port),
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(worker_log_port),
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            **(env or {}),
        }
        if "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN" in self.env:
            del self.env["AIRFLOW__DATABASE__SQL_ALCHEMY_CONNECT_ARGS"]  # of SQLite
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._killed: set[str] = set()

    def __repr__(self) -> str:
        alive = [name for name, each in self._processes.items() if each.poll() is None]
        return f"<Airflow {self.url} in {self.home} [{', '.join(alive) or 'stopped'}]>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- life -------------------------------------------------------------------------------

    def start(self, timeout_s: float = BACKSTOP_S) -> None:
        """Make the database, start all parts, and wait until they are healthy.

        Raises:
            WaitError: they are not within the time; the message has the end of their logs.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        self.dags.mkdir(parents=True, exist_ok=True)
        self.command("db", "migrate")
        try:
            for component in self.components:
                self._spawn(component)
            self.wait_until_healthy(timeout_s)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End everything: SIGTERM, and SIGKILL for what is left. May be called again."""
        for process in self._processes.values():
            _signal(os.killpg, process.pid, signal.SIGTERM)
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline_s - time.monotonic()))
        for component in list(self._processes):
            self.kill(component)
            del self._processes[component]

    def kill(self, component: str) -> None:
        """SIGKILL a part with all its processes, as the loss of its machine would.

        For the scheduler that includes the tasks that run, which are its children.
        """
        self._killed.add(component)
        end_session(self._processes[component])

    def restart(self, component: str) -> None:
        """Start a part again that was killed, or is running; does not wait until it is healthy."""
        self.kill(component)
        self._spawn(component)

    def check(self) -> None:
        """Make sure that every part runs but those that were killed on purpose.

        Raises:
            WaitError: one has ended by itself; the message has the end of its log.
        """
        for name, process in self._processes.items():
            if name not in self._killed and process.poll() is not None:
                raise WaitError(f"{name} ended:\n{self.log(name)[-4000:]}")

    def wait_until_healthy(self, timeout_s: float = BACKSTOP_S) -> None:
        """Wait until every part says that it is healthy.

        Raises:
            WaitError: a part ended, or is not healthy within the time.
        """

        def look() -> bool:
            try:
                health = self.rest.health()
            except RestError:
                return False
            return all(health.get(name) == "healthy" for name in HEALTHY)

        try:
            until(look, f"all of {self!r} healthy", timeout_s=timeout_s)
        except WaitError as exc:
            logs = "\n".join(f"== {each}\n{self.log(each)[-1500:]}" for each in self.components)
            raise WaitError(f"{exc}\n{logs}") from exc

    # -- looking and acting -----------------------------------------------------------------

    def log(self, component: str) -> str:
        """What a part has printed so far, over all its starts."""
        path = self._log_path(component)
        return path.read_text(errors="replace") if path.exists() else ""

    def command(self, *arguments: str, timeout_s: float = BACKSTOP_S) -> str:
        """Run `airflow …` to its end, and return what it prints.

        Raises:
            WaitError: it failed; the message has all it printed.
        """
        done = subprocess.run(
            [str(BIN / "airflow"), *arguments],
            env=self.env,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode != 0:
            raise WaitError(f"airflow {' '.join(arguments)}:\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def kill_task(self, dag_id: str, run_id: str, task_id: str) -> bool:
        """SIGKILL the process of a running task with what it started; False if there is none."""
        task = self.rest.task(dag_id, run_id, task_id)
        pid = task["pid"]
        # The pid is only taken when it is a process of ours: it may have ended meanwhile.
        schedulers = [name for name in self.components if name.startswith("scheduler")]
        ours = any(pid in _session(self._processes[name].pid) for name in schedulers)
        if task["state"] != "running" or not ours:
            return False
        # A task leads a process group, but for a moment after it was forked: then it is alone.
        _signal(os.killpg if os.getpgid(pid) == pid else os.kill, pid, signal.SIGKILL)
        return True

    def _spawn(self, component: str) -> None:
        self._killed.discard(component)
        name = component.removesuffix("-2")
        ports = {f"AIRFLOW__LOGGING__{each}_LOG_SERVER_PORT" for each in ("TRIGGER", "WORKER")}
        own = {each: str(free_ports(1)[0]) for each in ports} if component != name else {}
        with self._log_path(component).open("ab") as log:
            self._processes[component] = subprocess.Popen(
                [str(BIN / "airflow"), name],
                env={**self.env, **own},
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _log_path(self, component: str) -> Path:
        return self.home / f"{component}.log"


def end_session(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL all processes of the session that a process leads or led.

    Raises:
        WaitError: some outlive it.
    """
    deadline_s = time.monotonic() + KILL_TIMEOUT_S
    while pids := _session(process.pid):
        for pid in pids:
            _signal(os.kill, pid, signal.SIGKILL)
        process.poll()
        if time.monotonic() > deadline_s:
            raise WaitError(f"{process.args!r}: {pids} outlive SIGKILL")
        time.sleep(0.01)
    process.wait()


def _session(leader: int) -> list[int]:
    """Processes of the session that a process leads or led, zombies left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:  # it ended meanwhile
            continue
        if int(session) == leader and state != "Z":
            found.append(int(entry.name))
    return found


def _signal(send: Callable[[int, int], None], pid: int, number: int) -> None:
    with suppress(ProcessLookupError):  # it ended meanwhile
        send(pid, number)
