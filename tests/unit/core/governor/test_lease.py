"""How long a session certainly lives, whatever is lost or late."""

import math
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.governor.lease import LEAVE_S, PROBE_SHARE, RESERVE_SHARE, Lease

TIMEOUT_S = 8.0
DRIFT = 0.001
NEVER_S = math.inf


@pytest.fixture
def lease():
    """One that began with a handshake at 100 s."""
    lease = Lease()
    lease.agreed(100.0, TIMEOUT_S)
    return lease


def test_it_tells_for_how_long_an_answer_is_overdue(lease):
    """Silence counts from when the next probe is due, and ends with an answer."""
    due_s = 100 + TIMEOUT_S * PROBE_SHARE
    assert lease.silent_s(due_s) == pytest.approx(0.0)
    lease.sent(due_s)
    assert lease.silent_s(due_s + 3) == pytest.approx(3.0)
    lease.answered(due_s)
    assert lease.silent_s(due_s + 1) < 1


def test_another_timeout_counts_for_all_requests(lease):
    """A server that agrees to less may end the session sooner than the one before."""
    lease.answered(104.0)
    lease.agreed(103.0, 4.0)
    assert lease.timeout_s == 4.0
    assert lease.valid_until_s == pytest.approx(104 + 4 * (1 - RESERVE_SHARE) - LEAVE_S)


def test_a_lost_session_does_not_come_back(lease):
    """No answer and no handshake makes the lease valid again."""
    lease.lost()
    lease.answered(101.0)
    lease.agreed(102.0, TIMEOUT_S)
    assert not lease.valid(101.0)
    assert "lost" in repr(lease)


def test_probes_are_due_in_regular_intervals(lease):
    """The next one is due an eighth of the timeout after the last, answered or not."""
    step_s = TIMEOUT_S * PROBE_SHARE
    assert lease.probe_due_s == 100 + step_s
    lease.sent(103.0)
    assert lease.probe_due_s == 103 + step_s
    lease.answered(103.0)
    assert lease.probe_due_s == 103 + step_s


# -- against a service that ends sessions ----------------------------------------------------


class Probe(NamedTuple):
    """A request: what passes before it, on its way there and back, and how late the leader knows.

    A way of NEVER_S is one that it does not arrive on.
    """

    after_s: float
    there_s: float
    back_s: float
    known_late: float


latest = RESERVE_SHARE - 2 * DRIFT
ways = st.one_of(st.just(0.0), st.floats(0, 3), st.floats(0, 20), st.just(NEVER_S))
known = st.one_of(st.just(latest), st.floats(0, latest))
probes = st.builds(Probe, st.floats(0.01, 3), ways, ways, known)


def histories(sent):
    """What happens, by its time: (when, 1 at the client or 0 at the service, sent when, detail)."""
    now_s, events = 0.0, []
    for probe in sent:
        now_s += probe.after_s
        there_s = now_s + probe.there_s
        events.append((there_s, 0, now_s, probe.known_late * TIMEOUT_S))
        events.append((there_s + probe.back_s, 1, now_s, there_s))
    return sorted(event for event in events if event[0] < NEVER_S)


@given(st.lists(probes, max_size=40), st.floats(-DRIFT, DRIFT), st.floats(0, 1e6))
def test_while_the_lease_is_valid_the_session_lives(sent, drift, booted_s):
    """Whatever is lost or late, with clocks that drift: nobody has taken over meanwhile."""

    def clock(real_s):
        return booted_s + real_s * (1 + drift)

    lease, ends_s = Lease(), TIMEOUT_S
    lease.agreed(clock(0.0), TIMEOUT_S)
    over_s = None  # when the service ended the session
    for when_s, at_client, sent_s, detail_s in histories(sent):
        if over_s is None and when_s > ends_s:
            over_s = ends_s
        if over_s is not None:
            assert not lease.valid(clock(over_s))
            assert not lease.valid(clock(when_s))
        if not at_client and over_s is None:
            # It may count from somewhat before.
            ends_s = max(ends_s, when_s - detail_s + TIMEOUT_S)
        elif at_client and (over_s is None or detail_s <= over_s):
            lease.answered(clock(sent_s))
            assert lease.valid_until_s <= clock(ends_s)
    assert not lease.valid(clock(ends_s))
    assert not lease.valid(clock(ends_s) - LEAVE_S / 2)
