"""`MemqNotifier`: say which topic and range a failure is about, and pass it on to whoever is told.

Airflow has notifiers for mail, chats and pagers. This one gives them what to say: it writes the
message, logs it as critical, and calls each of them with it in the context, where their templates
find it.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

from airflow.sdk import BaseNotifier

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from airflow.sdk import Context

MAX_REASON = 3_000  # characters: chats and pagers refuse, or cut, what is longer


class MemqNotifier(BaseNotifier):
    """Says what failed: DAG and task, topic, range, manifest, the reason and a link to the log.

    The reason is the task's error. Those of MemQ's operators name what was lost: producers,
    sequences, offsets and counts.

    Give it to a task as `on_failure_callback`, or to a deadline as
    `AsyncCallback(MemqNotifier)`. `notifiers` are then called with the same context and two more
    values for their templates: `memq_message`, the text, and `memq_failure`, what it is made of
    (`task`, `run`, `topic`, `range`, `manifest`, `reason`, `link`; empty where there is none):

        MemqNotifier(notifiers=[SmtpNotifier(
            to="oncall@example.org",
            subject="{{ memq_failure.topic }}: {{ memq_failure.task }} failed",
            html_content="<pre>{{ memq_message }}</pre>",
        )])

    Args:
        notifiers: notifiers of Airflow, or functions of a context, which may be async. All are
            called, even when one of them fails.
        context: of a failure, for `await`.

    Raises:
        ExceptionGroup: some of them failed.
    """

    def __init__(
        self,
        context: Context | None = None,
        *,
        notifiers: Sequence[Callable[[Any], object]] = (),
    ) -> None:
        super().__init__(context)
        self.notifiers = tuple(notifiers)

    def notify(self, context: Context) -> None:
        """Tell everybody, from a worker or the DAG processor."""
        told, errors = self._told(context), []
        for each in self.notifiers:
            try:
                _call(each, told)
            except Exception as exc:  # noqa: BLE001 - the others are told all the same
                errors.append(exc)
        self._fail(errors)

    async def async_notify(self, context: Context) -> None:
        """Tell everybody, from the triggerer."""
        told, errors = self._told(context), []
        for each in self.notifiers:
            try:
                await _call_async(_fresh(each), told)
            except Exception as exc:  # noqa: BLE001 - the others are told all the same
                errors.append(exc)
        self._fail(errors)

    def _told(self, context: Context) -> dict[str, Any]:
        """Log it; and the context with which the others are called."""
        failure = failure_of(context)
        text = message_of(failure)
        self.log.critical("%s", text)
        return {**context, "memq_failure": failure, "memq_message": text}

    def _fail(self, errors: list[Exception]) -> None:
        if errors:
            raise ExceptionGroup(f"{len(errors)} of {len(self.notifiers)} notifiers failed", errors)


def failure_of(context: Context) -> dict[str, str]:
    """What a failure is about, from the context of its callback; empty where that is not known.

    The callback of a task whose worker died runs in the DAG processor, where templates are not
    rendered: there the range is the partition key of the run.
    """
    known = cast("dict[str, Any]", context)
    ti, run = known.get("task_instance") or known.get("ti"), known.get("dag_run")
    task = known.get("task") or getattr(ti, "task", None)
    dag_id = _of(ti, "dag_id") or _of(run, "dag_id")
    return {
        "task": ".".join(filter(None, [dag_id, _of(ti, "task_id")])),
        "run": _of(ti, "run_id") or _of(run, "run_id"),
        "topic": _of(task, "topic"),
        "range": _of(task, "range_key") or _of(run, "partition_key"),
        "manifest": _of(task, "manifest_url") or _of(task, "manifest"),
        "reason": str(known.get("exception") or known.get("reason") or "")[:MAX_REASON],
        "link": _of(ti, "log_url"),
    }


def message_of(failure: dict[str, str]) -> str:
    """It in words: a line for each thing that is known."""
    head = f"FAILED: {failure['task'] or 'a task'}"
    lines = [f"{name}: {value}" for name, value in failure.items() if name != "task" and value]
    return "\n".join([head, *lines])


def _of(thing: Any, name: str) -> str:
    """An attribute as text; empty when there is none, or it is a template that is not rendered."""
    if isinstance(thing, dict):  # the triggerer has a context of plain JSON
        text = str(thing.get(name) or "")
    else:
        text = str(getattr(thing, name, None) or "")
    return "" if "{{" in text else text


def _fresh(notifier: Callable[[Any], object]) -> Callable[[Any], object]:
    """A copy: a notifier renders its templates in place, and would say the same the next time."""
    return copy.copy(notifier) if isinstance(notifier, BaseNotifier) else notifier


def _call(notifier: Callable[[Any], object], context: dict[str, Any]) -> None:
    try:
        said = _fresh(notifier)(context)
    except NotImplementedError:  # it has no other way than to be awaited
        if not isinstance(notifier, BaseNotifier):
            raise
        said = _call_async(_fresh(notifier), context)
    if inspect.isawaitable(said):
        with ThreadPoolExecutor(1) as thread:  # this one may have an event loop already
            thread.submit(asyncio.run, _awaited(said)).result()


async def _call_async(notifier: Callable[[Any], object], context: dict[str, Any]) -> None:
    if isinstance(notifier, BaseNotifier):
        notifier.context = cast("Context", context)
        try:
            await notifier
        except NotImplementedError:  # it has no other way than to block
            await asyncio.to_thread(_fresh(notifier), context)
        return
    said = await asyncio.to_thread(notifier, context)
    if inspect.isawaitable(said):
        await said


async def _awaited(said: Awaitable[object]) -> None:
    await said
