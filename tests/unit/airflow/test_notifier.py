"""Who is told of a failure, and what."""

from types import SimpleNamespace

import pytest
from airflow.sdk import BaseNotifier

from airflow_provider_memq.notifications.memq import MAX_REASON, MemqNotifier, failure_of
from memq.errors import ConfigError

KEY = "00000:000000000000-000000000004@0123456789abcdef"


class Chat(BaseNotifier):
    """A notifier with a template, as those of Airflow's providers are."""

    template_fields = ("text",)

    def __init__(self, said, text="{{ memq_failure.topic }}: {{ memq_message }}"):
        super().__init__()
        self.said, self.text = said, text

    def notify(self, context):
        self.said.append(self.text)


def failed(task_id="process", **task):
    """The context of a callback."""
    return {
        "task_instance": SimpleNamespace(
            dag_id="memq_process_ranges", task_id=task_id, run_id="r1", log_url="http://airflow/r1"
        ),
        "task": SimpleNamespace(topic="clicks", **task),
        "dag_run": SimpleNamespace(partition_key=KEY),
        "exception": RuntimeError("lost: 3 LogMessages of producer p, sequences 4-6"),
    }


def test_a_message_says_what_was_lost_and_where(capsys):
    """Topic, range, manifest, what was lost and a link are in the log, as critical."""
    MemqNotifier()(failed(range_key=KEY, manifest_url="s3://lake/m.json"))

    first, *lines = capsys.readouterr().out.splitlines()
    assert "critical" in first
    assert first.endswith("FAILED: memq_process_ranges.process")
    lines[-1] = lines[-1].partition(" [")[0]
    assert lines == [
        "run: r1",
        "topic: clicks",
        f"range: {KEY}",
        "manifest: s3://lake/m.json",
        "reason: lost: 3 LogMessages of producer p, sequences 4-6",
        "link: http://airflow/r1",
    ]


def broken(context):
    """A pager that is down."""
    raise OSError("down")


def test_templates_of_others_find_it():
    """A notifier of Airflow says the message, each time that of the failure it is called for."""
    said = []
    notifier = MemqNotifier(notifiers=[Chat(said), said.append])

    notifier(failed("first"))
    notifier(failed("second"))

    assert said[0].startswith("clicks: FAILED: memq_process_ranges.first\n")
    assert said[1]["memq_failure"]["task"] == "memq_process_ranges.first"
    assert said[2].startswith("clicks: FAILED: memq_process_ranges.second\n")


async def test_one_that_fails_keeps_nobody_from_being_told():
    """All are called, and then the failure is raised: where a loop runs, and in the triggerer."""
    said = []
    notifiers = [broken, Chat(said)]
    with pytest.raises(ExceptionGroup, match="1 of 2 notifiers failed"):
        MemqNotifier(notifiers=notifiers)(failed())
    with pytest.raises(ExceptionGroup, match="1 of 2 notifiers failed"):
        await MemqNotifier(failed(), notifiers=notifiers)
    assert [text.partition(":")[0] for text in said] == ["clicks"] * 2


def test_an_async_function_is_refused():
    """What a worker cannot call is named when the DAG is parsed, with the way out."""

    async def page(context):
        raise AssertionError(context)

    with pytest.raises(ConfigError, match=r"page .* is async.*asyncio\.run"):
        MemqNotifier(notifiers=[page])


def test_what_is_not_known_is_left_out():
    """Where a worker died templates are not rendered, and a deadline knows no task at all."""
    unrendered = failure_of(failed(range_key="{{ dag_run.partition_key }}"))
    deadline = failure_of({"dag_run": {"dag_id": "d", "run_id": "r1"}, "reason": "x" * 9_999})

    assert unrendered["range"] == KEY
    assert (deadline["task"], deadline["topic"]) == ("d", "")
    assert len(deadline["reason"]) == MAX_REASON
