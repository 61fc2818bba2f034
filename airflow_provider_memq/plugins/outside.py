"""Facts from outside of Airflow: from brokers and tables. Each look may fail or hang.

So all looks of a page run at once, in threads of their own, and a page waits for them `BUDGET_S`
together: it shows what is known by then, and a line about the rest. There is no way to end a thread
that hangs, so `MAX_RUNNING` looks at one thing run at a time; those beyond are refused.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import defaultdict
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.sdk.exceptions import AirflowException

from airflow_provider_memq.hooks.memq import MemqHook
from airflow_provider_memq.planning.ledger import is_same_topic
from airflow_provider_memq.planning.topics import read_state
from airflow_provider_memq.settings import DEFAULT_CONN_ID
from memq.core.units import iso_ms
from memq.errors import LimitReachedError, MemqError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_provider_memq.planning.topics import TopicState
    from airflow_provider_memq.plugins.queries import Pipeline, Planned
    from memq.client.lag import Lag
    from memq.core.ranges import Interval, OffsetRange
    from memq.tables.iceberg import IcebergTable

log = logging.getLogger(__name__)

BUDGET_S = 3.0
MAX_RUNNING = 8
MAX_TABLES = 20  # that are open
MAX_SNAPSHOTS = 10_000  # of a table, the newest; those of a page of ranges are among them
MAX_TEXT = 500  # characters of an error in a page

_USER_INFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_SECRET = re.compile(
    r"((?:password|passwd|secret|token|credential|access[-_.]?key)[\w.-]*['\"]?\s*[=:]\s*)[^\s,;&]+",
    re.IGNORECASE,
)
_free: dict[str, threading.Semaphore] = defaultdict(lambda: threading.Semaphore(MAX_RUNNING))


class Brokers(NamedTuple):
    """What the brokers say of a topic.

    Attributes:
        state: of the topic.
        stored: next offsets of the group that follows.
        lag: what is published and not processed, by read partition.
    """

    state: TopicState
    stored: dict[int, int]
    lag: dict[int, Lag]


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of a table that has added a range.

    Attributes:
        table: the table.
        snapshot_id: of the snapshot, as text: JavaScript counts to 2**53.
        committed: when, ISO time.
        records: rows of the range.
        job: that did.
    """

    table: str
    snapshot_id: str
    committed: str
    records: int
    job: str


class TableState(NamedTuple):
    """What a table has of one incarnation of a topic.

    Attributes:
        name: of the table.
        held: offsets that are in, by read partition.
        snapshots: by the range they added; those that have not expired.
    """

    name: str
    held: dict[int, list[Interval]]
    snapshots: dict[OffsetRange, Snapshot]


def look_outside(
    pipeline: Pipeline, planned: Planned, notes: list[str]
) -> tuple[Brokers | None, list[TableState]]:
    """Ask the brokers and read the tables; what cannot be seen goes to the notes."""
    topic, incarnation = pipeline.topic, planned.ledger.incarnation
    brokers = "the brokers"
    looks: dict[str, Callable[[], Any]] = {brokers: partial(ask_brokers, pipeline, planned)}
    for name in pipeline.tables:
        looks[f"table {name}"] = partial(read_table, name, topic, incarnation)
    seen = look_at(looks, notes)
    return seen.pop(brokers, None), list(seen.values())


def look_at(looks: Mapping[str, Callable[[], Any]], notes: list[str]) -> dict[str, Any]:
    """Look at several things at once; why one was not seen goes to the notes."""
    futures = {what: _start(what, see) for what, see in looks.items()}
    wait(futures.values(), BUDGET_S)
    seen = {}
    for what, future in futures.items():
        if not future.done():
            notes.append(f"{what}: no answer within {BUDGET_S:g} s")
        elif (error := future.exception()) is None:
            seen[what] = future.result()
        elif isinstance(error, MemqError | AirflowException):
            notes.append(f"{what}: {in_a_line(error)}")
        else:  # each storage and catalog has errors of its own
            log.warning("%s", what, exc_info=error)
            notes.append(f"{what}: {type(error).__name__}: {in_a_line(error)}")
    return seen


def _start(what: str, see: Callable[[], Any]) -> Future[Any]:
    """Begin a look in a daemon, so that one that hangs does not hold up the end of the process."""
    future: Future[Any] = Future()
    if not _free[what].acquire(blocking=False):
        running = f"not asked, for {MAX_RUNNING} looks at it have not ended: try again later"
        future.set_exception(LimitReachedError(running))
        return future

    def run() -> None:
        try:
            future.set_result(see())
        except Exception as exc:  # noqa: BLE001 - the page shows it
            future.set_exception(exc)
        finally:
            _free[what].release()

    threading.Thread(target=run, name="memq-page", daemon=True).start()
    return future


def ask_brokers(pipeline: Pipeline, planned: Planned) -> Brokers:
    """Ask the brokers of a topic.

    Raises:
        MemqError: they do not answer, or there is no such topic.
        AirflowNotFoundException: there is no such connection.
    """
    hook = MemqHook(pipeline.conn_id or DEFAULT_CONN_ID)
    with hook.topic(pipeline.topic) as client:
        state = read_state(pipeline.topic, client)
        if not is_same_topic(planned.ledger, state):
            return Brokers(state, {}, {})
        stored = client.committed(pipeline.group) if pipeline.group else {}
        reached = {**state.starts, **planned.processed(stored)}
        positions = {p: offset for p, offset in reached.items() if p in state.ends}
        return Brokers(state, stored, client.lag(positions))


def read_table(name: str, topic: str, incarnation: str) -> TableState:
    """Read what a table has of a topic.

    Raises:
        ConfigError: there is no such table or catalog, or no pyiceberg.
        CorruptDataError: its ledger cannot be told.
        StorageError: the catalog or the storage failed.
    """
    table = _opened(name)
    seen = table.look()
    lives = seen.ledger.topics.get(topic, {}).get(incarnation, {})
    held = {partition: list(each.intervals) for partition, each in lives.items()}
    snapshots = {
        each.range.offsets: Snapshot(
            name,
            str(each.snapshot_id),
            iso_ms(each.committed_ms),
            each.range.records,
            each.job,
        )
        for each in table.ranges(seen.base)[-MAX_SNAPSHOTS:]
        if each.range.topic == topic
    }
    return TableState(name, held, snapshots)


@lru_cache(MAX_TABLES)
def _opened(name: str) -> IcebergTable:
    """A table, which is kept: a catalog has connections, and is slow to close them by itself."""
    from memq.tables.iceberg import open_table  # noqa: PLC0415 - an extra

    return open_table(name)


def in_a_line(error: object) -> str:
    """Put a text from elsewhere in one line, without credentials that are known by their form."""
    text = " ".join(str(error).split())
    return _SECRET.sub(r"\1***", _USER_INFO.sub("***", text))[:MAX_TEXT]
