"""Looks at what may be away: brokers, catalogs, storages. Each has a limit of time, and is kept.

A look runs in a thread of its own, and whoever asks waits for it until `budget_s` after it began,
never longer: a page is shown with what is known by then, and a line about the rest. There is no way
to end a thread that hangs, so one look at a thing runs at a time, whoever asks for it, and
`MAX_RUNNING` in all; those beyond are refused. The answer is kept for some seconds, an error as
well: who loads a page again and again asks nobody more often for that.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from airflow_provider_memq.versions import AirflowException
from memq.errors import MemqError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

T = TypeVar("T")

log = logging.getLogger(__name__)

BUDGET_S = 3.0
KEEP_S = 5.0
MAX_RUNNING = 8
MAX_KEPT = 100  # those that run among them
MAX_TEXT = 500  # characters of an error in a page

_USER_INFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_SECRET = re.compile(
    r"((?:password|passwd|secret|token|credential|access[-_.]?key)[\w.-]*['\"]?\s*[=:]\s*)[^\s,;&]+",
    re.IGNORECASE,
)


class Answer(NamedTuple, Generic[T]):
    """What a look has given.

    Attributes:
        value: what was seen; None where nothing was.
        trouble: why nothing was seen, in a line; empty where something was.
    """

    value: T | None
    trouble: str = ""


class Look:
    """One look, which may still run.

    Args:
        what: it looks at, for its trouble: "the brokers".
        began_s: by the clock of its `Looks`.
    """

    def __init__(self, what: str, began_s: float) -> None:
        self.what, self.began_s = what, began_s
        self.done = threading.Event()
        self.answer: Answer[Any] = Answer(None)

    def __repr__(self) -> str:
        return f"<Look {self.what} {'done' if self.done.is_set() else 'running'}>"


class Looks:
    """Runs looks and keeps their answers; threads share it.

    Args:
        budget_s: how long a look is waited for.
        keep_s: how long its answer is kept after it began.
        clock: of seconds.
    """

    def __init__(
        self,
        *,
        budget_s: float = BUDGET_S,
        keep_s: float = KEEP_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._budget_s, self._keep_s, self._clock = budget_s, keep_s, clock
        self._lock = threading.Lock()
        self._looks: dict[Hashable, Look] = {}

    def __repr__(self) -> str:
        return f"<Looks [{len(self._looks)} kept]>"

    def start(self, key: Hashable, what: str, see: Callable[[], object]) -> Look:
        """Begin a look, unless one at the same runs or is kept; `wait` for its answer.

        Args:
            key: names what is looked at.
            what: it is, in words.
            see: looks; what it raises becomes the answer.
        """
        with self._lock:
            now_s = self._clock()
            known = self._looks.get(key)
            if known and (not known.done.is_set() or now_s < known.began_s + self._keep_s):
                return known
            look = Look(what, now_s)
            self._forget(now_s)
            running = sum(not each.done.is_set() for each in self._looks.values())
            if running >= MAX_RUNNING:
                look.answer = Answer(None, f"{what}: not asked, for {MAX_RUNNING} others are slow")
                look.done.set()
                return look
            self._looks[key] = look
        # A daemon, so that one that hangs does not hold up the end of the process.
        threading.Thread(target=_run, args=(look, see), name="memq-page", daemon=True).start()
        return look

    def wait(self, look: Look) -> Answer[Any]:
        """The answer of a look; that there is none when its time is over."""
        left_s = look.began_s + self._budget_s - self._clock()
        if look.done.wait(max(0.0, left_s)):
            return look.answer
        return Answer(None, f"{look.what}: no answer within {self._budget_s:g} s")

    def _forget(self, now_s: float) -> None:
        """Make room for one more: what is over goes, and of too many answers the oldest."""
        for key, look in list(self._looks.items()):
            is_over = now_s >= look.began_s + self._keep_s or len(self._looks) >= MAX_KEPT
            if look.done.is_set() and is_over:
                del self._looks[key]


def _run(look: Look, see: Callable[[], object]) -> None:
    try:
        look.answer = Answer(see())
    except (MemqError, AirflowException) as exc:
        look.answer = Answer(None, f"{look.what}: {in_a_line(exc)}")
    except Exception as exc:  # each storage and catalog has errors of its own
        log.exception("%s", look.what)
        look.answer = Answer(None, f"{look.what}: {type(exc).__name__}: {in_a_line(exc)}")
    finally:
        look.done.set()


def in_a_line(error: object) -> str:
    """A text from elsewhere in one line, without the credentials that are known by their form."""
    text = " ".join(str(error).split())
    return _SECRET.sub(r"\1***", _USER_INFO.sub("***", text))[:MAX_TEXT]
