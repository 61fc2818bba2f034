"""A sensor ends in the same way whichever way it waits."""

import asyncio
import time
from collections import Counter
from itertools import count
from types import SimpleNamespace

import pytest
from airflow.sdk import timezone
from airflow.sdk._shared.module_loading import import_string
from airflow.sdk.bases.operator import TriggerFailureReason
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowRuntimeError,
    AirflowSensorTimeout,
    AirflowSkipException,
    ErrorType,
    TaskDeferred,
)
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.triggers.base import TaskSuccessEvent

from airflow_provider_memq import waiting
from airflow_provider_memq.sensors.memq import MemqSensor
from airflow_provider_memq.triggers.memq import MemqTrigger
from airflow_provider_memq.waiting import Condition, WaitOutcome
from memq.errors import ConfigError, UnavailableError, UnknownTopicError
from memq.runtime.retry import Backoff

INTERVAL_S = 0.05
TIMEOUT_S, PATIENCE_S = 0.3, 60.0  # of those that time out, and of those that do not
API_DOWN = AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={}))
DOWN, GONE, BUG = UnavailableError("down"), UnknownTopicError("gone"), RuntimeError("a bug")
NOT_YET, DONE = False, True

STORIES = {
    "it holds": [DONE],
    "it never holds": [NOT_YET],
    "no such topic": [GONE],
    "the topic goes away": [NOT_YET, GONE],
    "no broker": [DOWN],
    "an outage": [NOT_YET, DOWN, DOWN, DONE],
    "an outage to the end": [NOT_YET, DOWN],
    "no API": [API_DOWN],
    "a bug": [BUG],
}
"""What looks give, in turn; the last one forever."""

EXPECTED = {
    #                       plain         soft_fail    never_fail   silent_fail
    "it holds": ("done", "done", "done", "done"),
    "it never holds": ("timed out", "skipped", "skipped", "timed out"),
    "no such topic": ("failed", "skipped", "skipped", "failed"),
    "the topic goes away": ("failed", "skipped", "skipped", "failed"),
    "no broker": ("another try", "another try", "skipped", "timed out"),
    "an outage": ("done", "done", "done", "done"),
    "an outage to the end": ("timed out", "skipped", "skipped", "timed out"),
    "no API": ("another try", "another try", "skipped", "timed out"),
    "a bug": ("another try", "another try", "skipped", "timed out"),
}
FLAGS = ({}, {"soft_fail": True}, {"never_fail": True}, {"silent_fail": True})
MODES = {
    "poke": {},
    "reschedule": {"mode": "reschedule"},
    "deferrable": {"deferrable": True},
    "without worker": {"start_from_trigger": True},
}
DEFERRED = ("deferrable", "without worker")  # Airflow skips any failure there with soft_fail
TIMING_OUT = ("it never holds", "an outage to the end")
NO_FIRST_LOOK = ("no broker", "no API", "a bug")  # the triggerer cannot know that it was the first

ids = count()
looks: Counter[str] = Counter()


class Story(Condition):
    """A condition whose looks do what a story says; its topic is `STORY/ID`."""

    async def look(self, client):
        story = STORIES[self.topic.partition("/")[0]]
        step = story[min(looks[self.topic], len(story) - 1)]
        looks[self.topic] += 1
        if isinstance(step, Exception):
            raise step
        return WaitOutcome(step, {"topic": self.topic}, f"look {looks[self.topic]}")


class StoryTrigger(MemqTrigger):
    condition_type = Story


class StorySensor(MemqSensor):
    trigger_type = StoryTrigger


@pytest.fixture(autouse=True)
def connection(monkeypatch):
    """Nobody is asked: each look is made by a condition of the test. Outages are short."""
    monkeypatch.setattr(waiting, "OUTAGE_BACKOFF", Backoff(INTERVAL_S, 60.0))
    monkeypatch.setenv("AIRFLOW_CONN_MEMQ_DEFAULT", "memq://127.0.0.1:1")


def fired(classpath, arguments, timeout_s):
    """What a triggerer makes of a trigger: method and arguments with which the task goes on."""
    trigger = import_string(classpath)(**arguments)

    async def run():
        async for event in trigger.run():
            return event
        raise AssertionError("a trigger ended without an event")

    try:
        event = asyncio.run(asyncio.wait_for(run(), timeout_s))
    except TimeoutError:
        return "__fail__", {"error": TriggerFailureReason.TRIGGER_TIMEOUT}
    except RuntimeError as exc:
        return "__fail__", {"error": TriggerFailureReason.TRIGGER_FAILURE, "traceback": [str(exc)]}
    if isinstance(event, TaskSuccessEvent):
        return None
    return "execute_complete", {"event": event.payload}


def outcome(make):
    """Run a task as Airflow does, each time in a new process; how its try ends."""
    since, resume = [], None
    context = {"ti": SimpleNamespace(get_first_reschedule_date=lambda _: (since or [None])[0])}
    start = make().start_trigger_args
    if start is not None:
        seconds = start.timeout.total_seconds()
        resume = fired(start.trigger_cls, start.trigger_kwargs, seconds)
        if resume is None:
            return "done"
    while True:
        task = make()
        try:
            if resume is None:
                task.execute(context)
            else:
                task.resume_execution(*resume, context)
        except AirflowRescheduleException as exc:
            since = since or [timezone.utcnow()]
            time.sleep(max(0.0, (exc.reschedule_date - timezone.utcnow()).total_seconds()))
        except TaskDeferred as deferred:
            resume = fired(*deferred.trigger.serialize(), deferred.timeout.total_seconds())
        except AirflowSkipException:
            return "skipped"
        except AirflowSensorTimeout:
            return "timed out"
        except AirflowFailException:
            return "failed"
        except Exception:  # noqa: BLE001 - as Airflow: another try, if the task has retries
            return "another try"
        else:
            return "done"


CASES = [
    pytest.param(mode, story, flag, id=f"{mode}-{story}-{name}")
    for mode in MODES
    for story in STORIES
    for flag, name in enumerate(["plain", "soft_fail", "never_fail", "silent_fail"])
    if not (mode == "without worker" and story in NO_FIRST_LOOK)
    if not (
        mode in DEFERRED and (name == "silent_fail" or (name == "soft_fail" and "bug" in story))
    )
]


@pytest.mark.parametrize(("mode", "story", "flag"), CASES)
def test_every_mode_ends_alike(mode, story, flag):
    """What happens, and the flags of the sensor, decide how it ends; how it waits does not."""
    ends = EXPECTED[story][flag] == "timed out" or story in TIMING_OUT
    topic = f"{story}/{next(ids)}"

    def make():
        return StorySensor(
            task_id="wait",
            topic=topic,
            poke_interval=INTERVAL_S,
            timeout=TIMEOUT_S if ends else PATIENCE_S,
            **MODES[mode],
            **FLAGS[flag],
        )

    assert outcome(make) == EXPECTED[story][flag]


@pytest.mark.parametrize("mode", [{"deferrable": True}, {"start_from_trigger": True}])
@pytest.mark.parametrize("flag", ["exponential_backoff", "silent_fail"])
def test_what_the_triggerer_does_not_do_is_refused(mode, flag):
    """A flag that would mean nothing there is named, with the mode in which it works."""
    with pytest.raises(ConfigError, match=rf"{flag} = True .* wait with mode='reschedule'"):
        StorySensor(task_id="wait", topic="it holds/x", **mode, **{flag: True})
