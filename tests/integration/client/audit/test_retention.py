"""The audit and retention: what is still there is judged, what is not is never called clean."""

from __future__ import annotations

import time

import pytest

from memq import AdminClient
from memq.cli.main import main
from memq.core.audit.reports import runs_of
from memq.testing.broker import BrokerProcess
from tests.topics.audited import Topic

SHORT = {"retention": "10s", "dedup_window": "10s", "upload_deadline": "1s"}
TIMEOUT_S = 60.0
PARTITIONS = 4


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory):
    """A broker that looks for expired Batches all the time."""
    data_dir = tmp_path_factory.mktemp("forgetful")
    with BrokerProcess(data_dir, retention_interval="100ms") as running:
        yield running


@pytest.fixture
def emptied(forgetful):
    """A topic of which retention has removed a first burst, and removes nothing any more."""
    topic = Topic(forgetful, read_partitions=PARTITIONS, **SHORT)
    topic.produce(2 * PARTITIONS)
    end_s = time.monotonic() + TIMEOUT_S
    # The offsets alone: a page of what is retained can be out of range by the time it is asked for.
    while any(each.end > each.start for each in topic.offsets()):
        assert time.monotonic() < end_s, "retention has not come"
        time.sleep(0.1)
    with AdminClient(topic.address) as admin:
        admin.alter_topic(topic.name, retention="7d")
    return topic


def test_loss_after_retention_has_emptied_the_topic_is_named(emptied, capsys) -> None:
    """A second burst is judged in each read partition, and nothing else is called lost."""
    producer_id = emptied.produce(2 * PARTITIONS)
    command = ["audit", emptied.name, "--bootstrap", emptied.address]
    assert main(command) == 3
    assert capsys.readouterr().out.splitlines()[-1].startswith("PARTLY JUDGED: ")
    gone: set[int] = set()
    for partition in range(PARTITIONS):
        (*_, notification) = emptied.notifications(partition)
        gone.add(notification.producers[0].first)
        emptied.path(notification).unlink()
        for deep in (False, True):
            found = {
                each.name.producer_id: each.lost for each in emptied.audit(deep=deep).producers
            }
            assert found.pop(producer_id) == runs_of(gone)
            assert not any(found.values())
    assert main(command) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("NOT CLEAN: ")
