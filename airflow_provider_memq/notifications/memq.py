"""`MemqNotifier`: say which topic and range a failure is about, and pass it on to notifiers.

Airflow has notifiers for mail, chats and pagers. This one gives them what to say: it writes the
message, logs it as critical, and calls each of them with it in the context, where their templates
find it.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from typing import TYPE_CHECKING, Any, cast

from airflow.sdk import BaseNotifier

from memq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
        notifiers: notifiers of Airflow that can block, or functions of a context. All are called,
            even when one of them fails.
        context: of a failure, for `await`.

    Raises:
        ConfigError: one of them is an async function.
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
        for each in self.notifiers:
            if inspect.iscoroutinefunction(each):
                raise ConfigError(
                    f"notifiers: {each!r} is async, and a worker has no event loop for it; give a "
                    "function that calls asyncio.run"
                )

    def notify(self, context: Context) -> None:
        """Tell everybody, from a worker or the DAG processor."""
        failure = failure_of(context)
        text = message_of(failure)
        self.log.critical("%s", text)
        told, errors = {**context, "memq_failure": failure, "memq_message": text}, []
        for each in self.notifiers:
            # A notifier renders its templates in place: the next failure needs another one.
            fresh = copy.copy(each) if isinstance(each, BaseNotifier) else each
            try:
                fresh(told)
            except Exception as exc:  # noqa: BLE001 - the others are told all the same
                errors.append(exc)
        if errors:
            raise ExceptionGroup(f"{len(errors)} of {len(self.notifiers)} notifiers failed", errors)

    async def async_notify(self, context: Context) -> None:
        """Tell everybody, from the triggerer."""
        await asyncio.to_thread(self.notify, context)


def failure_of(context: Context) -> dict[str, str]:
    """Describe a failure from the context of its callback; empty where that is not known.

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
    """Return an attribute as text; empty when there is none, or it is a template that is not
    rendered.
    """
    if isinstance(thing, dict):  # the triggerer has a context of plain JSON
        text = str(thing.get(name) or "")
    else:
        text = str(getattr(thing, name, None) or "")
    return "" if "{{" in text else text
