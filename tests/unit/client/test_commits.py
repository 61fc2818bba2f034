from __future__ import annotations

import pytest

from memq.client.commits import Commits
from memq.client.membership import Membership
from memq.core.runtime import SYSTEM
from memq.core.wire.messages import GroupHeartbeatAnswer
from memq.errors import NotOwnerError


class Broker:
    """Stands for the queue of a topic: it stores every commit."""

    runtime = SYSTEM

    def __init__(self):
        self.cluster = self
        self.stored = []

    async def commit(self, group, member_id, offsets, **_):
        self.stored.append(dict(offsets))


def join(member):
    """The member is in its group, and is given partition 0."""
    answer = GroupHeartbeatAnswer(assigned=[0], members=1, settled=True)
    member.answered(member.heartbeat(0), answer, 0)
    member.started({0})


@pytest.fixture
def member():
    found = Membership(group="g", topic="t", member_id="m", client="", session_timeout_ms=10_000)
    join(found)
    return found


async def test_what_was_handed_out_in_a_session_that_is_over_is_not_committed(member):
    """Others may have come further: so it is refused, also when the member is back in its group."""
    broker = Broker()
    commits = Commits(broker, "g", membership=lambda: member, auto_interval_s=None)
    commits.moved(0, 2)
    member.lose()
    with pytest.raises(NotOwnerError, match="does not hold partition 0"):
        await commits.commit(commits.pending())
    join(member)
    with pytest.raises(NotOwnerError, match="its session ended"):
        await commits.commit(commits.pending())
    await commits.commit_if_owner(commits.pending())
    assert broker.stored == []


async def test_it_commits_again_once_the_loss_was_seen_to(member):
    """When the consumer has given up what was lost, commits of the new session are stored."""
    broker = Broker()
    commits = Commits(broker, "g", membership=lambda: member, auto_interval_s=None)
    commits.moved(0, 2)
    member.lose()
    join(member)
    member.lost.clear()
    commits.forget({0})
    commits.moved(0, 11)
    await commits.commit(commits.pending())
    assert broker.stored == [{0: 11}]
