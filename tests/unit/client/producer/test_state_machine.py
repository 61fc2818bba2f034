"""The producer's state machine against a model of the brokers, and rule by rule."""

import math
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from memq import errors
from memq.client.producer.accumulator import SealedMessage
from memq.client.producer.delivery import Delivery
from memq.client.producer.state_machine import (
    REFRESH_INTERVAL_S,
    ConnectToBroker,
    DropConnection,
    ProducerStateMachine,
    RefreshHosts,
    SendMessage,
    StateMachineOptions,
)
from memq.core.wire.messages import WriteAnswer
from memq.errors import (
    ClosedError,
    DeliveryTimeoutError,
    InvalidRequestError,
    MemqError,
    NotHostedError,
    ProducerFencedError,
    SequenceGapError,
    StorageError,
    UnauthorizedError,
    UnavailableError,
)

DEADLINE_S = 60.0
ANSWER_S = 20.0


class Rig:
    """A core with a clock, and what it did with its Messages."""

    def __init__(
        self,
        hosts=("a:1",),
        *,
        near=(),
        ordered=False,
        fixed=False,
        max_in_flight=4,
        acks=-1,
        producer_id="p",
    ):
        self.now = 100.0
        self.held = 0
        self.submitted = []
        self.errors = {}
        self.core = ProducerStateMachine(
            StateMachineOptions(
                topic="events",
                topic_id="0" * 16,
                producer_id=producer_id,
                epoch=3,
                acks=acks,
                ordered=ordered,
                fixed_partitions=fixed,
                max_in_flight=max_in_flight,
                delivery_timeout_s=DEADLINE_S,
                answer_timeout_s=ANSWER_S,
            ),
            list(hosts),
            near=near,
            release=self._release,
            on_submitted=self.submitted.append,
            on_settled=self._settled,
            randomness=lambda: 0.5,
        )

    def submit(self, body=b"body", write_partition=None):
        delivery = Delivery()
        self.held += len(body)
        self.core.submit(
            SealedMessage(body, 7, "schema", 1, 5, 6, self.now, delivery, write_partition)
        )
        return delivery

    def poll(self):
        return self.core.poll(self.now)

    def sends(self):
        """Poll and connect until there is nothing more to do; returns what was sent.

        Then nothing is due at once: a producer that is told so would poll without end.
        """
        sent = []
        while effects := self.poll():
            for effect in effects:
                if isinstance(effect, ConnectToBroker):
                    self.core.connected(effect.address)
                elif isinstance(effect, RefreshHosts):
                    self.core.refreshed([p.host for p in self.core._partitions], self.now)
                elif isinstance(effect, SendMessage):
                    sent.append(effect)
        assert self.core.wake_at_s() > self.now
        return sent

    def fail(self, send, error):
        self.core.failed(send.message, error, self.now)

    def ack(self, send, **answer):
        self.core.acked(send.message, WriteAnswer(**answer))

    def _release(self, size):
        self.held -= size
        assert self.held >= 0

    def _settled(self, entry, outcome):
        assert entry not in self.errors, "settled twice"
        self.errors[entry] = outcome if isinstance(outcome, MemqError) else None


def sequences(sends):
    return [send.header.sequence for send in sends]


def test_ordered_topic_sends_few_after_a_failure_and_more_with_each_ack():
    """What is refused was sent for nothing: after a failure one is in flight, then more again.

    One that was refused for the sake of those before it does not back off, however often it was.
    """
    rig = Rig(ordered=True, max_in_flight=8)
    for _ in range(12):
        rig.submit()
    first, second, *others = rig.sends()
    for send in (first, second):
        rig.fail(send, UnavailableError("no room"))
    for send in others:
        rig.fail(send, SequenceGapError("gap"))
    assert rig.sends() == []
    for _ in range(20):
        rig.now += 0.05
        flying = rig.sends()
        assert sequences(flying) == [0]
        rig.fail(flying[0], SequenceGapError("a Batch before this one failed"))
    rig.now += 0.05
    flying = rig.sends()
    for window in (1, 2, 3, 4):
        assert len(flying) == window
        rig.ack(flying.pop(0))
        flying += rig.sends()


HOSTS = ("a:1", "b:2", "a:1")


@pytest.mark.parametrize(
    ("options", "moved_to", "found"),
    [
        ({}, HOSTS, [2, 2, 2]),
        ({}, (*HOSTS, "b:2"), [2, 2, 1, 1]),
        ({"fixed": True}, (*HOSTS, "b:2"), [2, 2, 2]),
        ({"ordered": True}, (*HOSTS, "b:2"), [6]),
        ({"near": {"a:1"}}, HOSTS, [3, 3]),
        ({"near": {"a:1"}}, ("b:2", "a:1", "b:2"), [6]),
        ({"near": {"c:3"}}, HOSTS, [2, 2, 2]),
        ({"near": {"b:2"}, "fixed": True}, HOSTS, [2, 2, 2]),
        ({"near": {"b:2"}, "ordered": True}, HOSTS, [6]),
    ],
)
def test_where_messages_go(options, moved_to, found):
    """They take turns, where they may; near hosts come first; one with its place goes there."""
    rig = Rig(HOSTS, max_in_flight=64, **options)
    rig.core.moved(moved_to, near=options.get("near", ()))
    for place in (None, 2, None, None, 0, None, None, None):
        rig.submit(write_partition=place)
    sends = rig.sends()
    assert all(send.address == moved_to[send.header.write_partition] for send in sends)
    in_turn = [m for m in rig.submitted if m.sealed.write_partition is None]
    assert sorted(Counter(m.partition.number for m in in_turn).values()) == sorted(found)
    named = [m for m in rig.submitted if m.sealed.write_partition is not None]
    assert [m.partition.number for m in named] == [2, 0]
    if options.get("ordered"):
        abroad = Rig(HOSTS, ordered=True)
        abroad.submit()
        assert abroad.submitted[0].partition.number == in_turn[0].partition.number


@pytest.mark.parametrize("ordered", [False, True])
def test_write_partitions_of_one_broker_take_turns(ordered):
    """None is served before all the others, nor waits for another one's back-off."""
    rig = Rig(["a:1"] * 3, max_in_flight=1, ordered=ordered)
    for number in range(12):
        rig.submit(write_partition=number % 3)
    (failed,) = rig.sends()
    rig.fail(failed, StorageError("slow down"))
    served = []
    while sends := rig.sends():
        served.append(sends[0].header.write_partition)
        rig.ack(sends[0])
    assert {served[0], served[1]} == {0, 1, 2} - {failed.header.write_partition}
    assert served.count(failed.header.write_partition) == (0 if ordered else 3)


@pytest.mark.parametrize(
    ("hosts", "said", "over"),
    [
        ("a - b", "a:refuses b:refuses", True),
        ("a b", "a:refuses b:takes b:refuses", True),
        ("a b", "a:refuses a:takes b:refuses", False),
        ("a b", "a:refuses a:away b:refuses", False),
        ("-", "a:refuses", False),
    ],
)
def test_a_token_is_wrong_once_every_host_refuses_it(hosts, said, over):
    """What counts is the last answer of each; while there is no host nobody has said so."""
    rig = Rig(hosts.replace("-", "").split(" "))
    delivery = rig.submit()
    for address, answer in (each.split(":") for each in said.split()):
        if answer == "takes":
            rig.core.connected(address)
            rig.core.disconnected(address)
        else:
            kind = UnauthorizedError if answer == "refuses" else UnavailableError
            rig.core.connect_failed(address, kind("no"), rig.now)
    assert (rig.core.error is not None) is delivery.done() is over


EVERY_ERROR = [each for each in vars(errors).values() if isinstance(each, type)]
FATAL = {
    "producer_fenced",
    "protocol",
    "topic_recreated",
    "unknown_topic",
    "unsupported_version",
}
MAY_HAVE_MOVED = {"not_hosted", "timeout", "unavailable"}


@pytest.mark.parametrize("kind", EVERY_ERROR, ids=lambda kind: kind.code)
@pytest.mark.parametrize("how", ["answer", "late answer", "connect", "refresh"])
def test_what_becomes_of_each_error(kind, how):
    """Five errors end the producer, whoever tells; others fail a Message, or it is sent again."""
    error = kind("the reason")
    rig = Rig(max_in_flight=1)
    if how == "refresh":
        rig.core.moved([""])
        deliveries = [rig.submit()]
        assert rig.poll() == [RefreshHosts()]
        rig.core.refresh_failed(error, rig.now)
    elif how == "connect":
        deliveries = [rig.submit()]
        rig.poll()
        rig.core.moved(["a:1", "b:2"])
        rig.core.connect_failed("a:1", error, rig.now)
    else:
        deliveries = [rig.submit(), rig.submit()]
        (send,) = rig.sends()
        rig.now += DEADLINE_S - 1 if how == "answer" else DEADLINE_S
        rig.poll()
        rig.fail(send, error)
    if kind.code in FATAL:
        assert rig.core.error is error
        assert (rig.held, rig.core.wake_at_s(), rig.poll()) == (0, math.inf, [])
        rig.core.end(ClosedError("later"))
        rig.core.connect_failed("a:1", ProducerFencedError("later"), rig.now)
        deliveries.append(rig.submit())
        outcomes = [each.exception(0) for each in deliveries]
        late = [each for each in outcomes if isinstance(each, DeliveryTimeoutError)]
        assert len(late) == (2 if how == "late answer" else 0)
        assert outcomes[len(late) :] == [error] * (len(deliveries) - len(late))
        return
    assert rig.core.error is None
    if how == "answer" and not error.retriable:
        assert deliveries[0].exception(0) is error
        assert not deliveries[1].done()
        return
    asks = RefreshHosts() in rig.poll()
    if how == "answer":
        assert asks == (kind.code in MAY_HAVE_MOVED)
    if how == "connect":
        assert asks
    if how != "late answer":
        assert not deliveries[0].done()
        rig.now += DEADLINE_S
        rig.poll()
        assert "; last error: the reason" in str(deliveries[0].exception(0))


def test_back_offs_grow_and_begin_anew():
    """Failures to connect count until one succeeds, and a Message's until it is settled."""
    rig = Rig()
    rig.submit()

    def wait_s():
        assert rig.poll() == [ConnectToBroker("a:1")]
        assert rig.poll() == []
        rig.core.connect_failed("a:1", UnavailableError("refused"), rig.now)
        assert rig.poll() in ([RefreshHosts()], [])
        rig.core.refreshed(["a:1"], rig.now)
        waited_s = rig.core.wake_at_s() - rig.now
        rig.now += waited_s
        return waited_s

    assert [wait_s() for _ in range(3)] == pytest.approx([0.025, 0.05, 0.1])
    rig.poll()
    rig.core.connected("a:1")
    waits = []
    for _ in range(3):
        (send,) = rig.sends()
        rig.fail(send, StorageError("slow down"))
        waits.append(rig.core.wake_at_s() - rig.now)
        rig.now += waits[-1]
    assert waits == pytest.approx([0.025, 0.05, 0.1])
    rig.core.disconnected("a:1")
    assert wait_s() == pytest.approx(0.025)


def test_a_second_redirect_in_a_row_backs_off_and_any_other_failure_begins_the_row_anew():
    """Redirects are followed at once every other time; after another error the next one is too."""
    rig = Rig()
    rig.submit()
    at_once, host = [], "a:1"
    for error in (
        NotHostedError("moved", "b:2"),
        NotHostedError("moved", "a:1"),
        NotHostedError("moved", "b:2"),
        StorageError("slow down"),
        NotHostedError("moved", "a:1"),
        StorageError("slow down"),
        NotHostedError("moved", "b:2"),
    ):
        (send,) = rig.sends()
        assert send.address == host
        host = getattr(error, "address", host)
        rig.fail(send, error)
        at_once.append(send.message.ready_s <= rig.now)
        rig.now += 3
    assert at_once == [True, False, True, False, True, False, True]


def test_a_connection_that_is_being_opened_outlives_the_end_of_the_last_one():
    """News of a connection's end that come late do not have its broker connected to twice."""
    rig = Rig()
    rig.submit()
    (send,) = rig.sends()
    rig.now += ANSWER_S
    assert rig.poll() == [DropConnection("a:1")]
    rig.submit()
    assert rig.poll() == [ConnectToBroker("a:1")]
    rig.core.disconnected("a:1")
    rig.fail(send, UnavailableError("dropped"))
    rig.now += 1
    assert ConnectToBroker("a:1") not in rig.poll()


def test_hosts_are_asked_for_again_when_one_fails_during_the_question():
    """An answer that was under way when another host failed does not stand for the next one."""
    rig = Rig(("a:1", "b:2"))
    for _ in range(2):
        rig.submit()
    rig.poll()
    rig.core.connect_failed("a:1", UnavailableError("refused"), rig.now)
    assert rig.poll() == [RefreshHosts()]
    rig.core.connect_failed("b:2", UnavailableError("refused"), rig.now)
    rig.core.refreshed(("a:1", "b:2"), rig.now)
    assert RefreshHosts() not in rig.poll()
    rig.now += REFRESH_INTERVAL_S
    assert RefreshHosts() in rig.poll()


def test_a_broker_is_forgotten_once_nothing_is_awaited_of_it():
    """One that hosts nothing counts for as long as its answers are out, and no longer."""
    rig = Rig(max_in_flight=1)
    rig.submit()
    (send,) = rig.sends()
    rig.now += ANSWER_S
    assert rig.poll() == [DropConnection("a:1")]
    for hosts in (["b:2"], ["c:3"], ["a:1"]):
        rig.core.moved(hosts)
        assert rig.core.in_flight == 1
    rig.submit()
    rig.poll()
    rig.core.connected("a:1")  # sooner than its last connection has ended
    assert not any(isinstance(effect, SendMessage) for effect in rig.poll())
    rig.fail(send, UnavailableError("dropped"))
    assert rig.core.in_flight == 0
    rig.core.connect_failed("a:1", UnavailableError("refused"), rig.now)
    rig.core.moved(["b:2"])
    assert "a:1" not in rig.core._links


def test_a_broker_is_silent_by_the_message_that_it_has_had_longest():
    """Later Messages win it no time; one that was sent again counts from then."""
    rig = Rig(max_in_flight=2)
    for _ in range(2):
        rig.submit()
    first, second = rig.sends()
    rig.now += ANSWER_S - 1
    rig.fail(first, StorageError("slow down"))
    rig.now += 0.5
    assert sequences(rig.sends()) == [0]
    assert rig.core.wake_at_s() == rig.now + 0.5
    rig.ack(second)
    assert rig.core.wake_at_s() == rig.now + ANSWER_S
    rig.now += 1
    rig.submit()
    assert len(rig.sends()) == 1
    rig.now += ANSWER_S - 1
    assert rig.poll() == [DropConnection("a:1")]


def test_who_keeps_the_oldest_message():
    """Asked who keeps a Message waiting, it names the broker that has it, or that is to get it."""
    rig = Rig(max_in_flight=1)
    for _ in range(2):
        rig.submit()
    (send,) = rig.sends()
    assert rig.core.overdue(rig.now + 4.9, 5) == ("", "")
    assert rig.core.overdue(rig.now + 5, 5) == ("a:1", "")
    rig.core.moved(["b:2"])
    rig.fail(send, StorageError("slow down"))
    assert rig.core.overdue(rig.now + 5, 5) == ("b:2", "slow down")
    rig.core.moved([""])
    assert rig.core.overdue(rig.now + 5, 5) == ("", "slow down")
    rig.core.moved(["b:2"])
    rig.now += 1
    (send,) = rig.sends()
    rig.ack(send)
    assert rig.core.overdue(rig.now + 5, 5) == ("b:2", "slow down")
    (send,) = rig.sends()
    rig.ack(send)
    delivery = rig.submit()
    assert rig.core.overdue(rig.now + 5, 5) == ("b:2", "")
    rig.core.trouble = "the object store refuses"
    rig.now += DEADLINE_S
    rig.poll()
    assert str(delivery.exception(0)).endswith("; the object store refuses")


def test_what_was_settled_is_counted_before_anybody_hears_of_it():
    """Whoever is told of an outcome finds it in the counts, and its memory free."""
    rig = Rig()
    told = []
    for outcome in ("ack", "fail"):
        delivery = rig.submit()
        delivery.add_done_callback(lambda _: told.append((len(rig.errors), rig.held)))
        (send,) = rig.sends()
        if outcome == "ack":
            rig.ack(send)
        else:
            rig.fail(send, InvalidRequestError("no"))
    assert told == [(1, 0), (2, 0)]


def test_end_keeps_memory_that_connections_still_read():
    """Ended with Messages in flight, the memory comes back with their connections' end."""
    rig = Rig()
    delivery = rig.submit(b"123")
    (send,) = rig.sends()
    rig.core.end(ClosedError("closed"))
    assert isinstance(delivery.exception(0), ClosedError)
    assert rig.held == 3
    rig.fail(send, ClosedError("connection closed"))
    assert rig.held == 0


@pytest.mark.parametrize("failed", [False, True])
def test_a_write_partition_without_a_host_waits(failed):
    """Nobody is connected to; the hosts are asked for again and again, until there is one."""
    rig = Rig(("",))
    delivery = rig.submit()
    for _ in range(3):
        assert rig.poll() == [RefreshHosts()]
        if failed:
            rig.core.refresh_failed(UnavailableError("nobody"), rig.now)
        else:
            rig.core.refreshed(("",), rig.now)
        assert rig.poll() == []
        assert rig.core.wake_at_s() == rig.now + REFRESH_INTERVAL_S
        rig.now += REFRESH_INTERVAL_S
    rig.core.moved(("b:2",))
    assert ConnectToBroker("b:2") in rig.poll()
    assert not delivery.done()


# -- against a model ------------------------------------------------------------------------

ADDRESSES = ("a:1", "b:2", "c:3")
RETRIABLE = (
    UnavailableError("u"),
    StorageError("s"),
    NotHostedError("n"),
    *(NotHostedError("n", address) for address in ADDRESSES),
)


class CoreMachine(RuleBasedStateMachine):
    """Random events; brokers that accept each name once, and in order where that is promised."""

    ordered = False

    def __init__(self):
        super().__init__()
        self.rig = Rig(["a:1", "b:2", "a:1"], ordered=self.ordered, max_in_flight=3)
        self.core = self.rig.core
        self.deliveries = []
        self.in_flight = []
        self.connecting = []
        self.refreshing = 0
        self.up = set()
        self.content = {}
        self.accepted = {}
        self.expected = {}
        self.least = {}

    @rule(count=st.integers(1, 4), place=st.sampled_from([None, 0, 1, 2]))
    def submit(self, count, place):
        for _ in range(count):
            body = b"%d" % len(self.deliveries)
            self.deliveries.append(self.rig.submit(body, place))

    @rule()
    def poll(self):
        for effect in self.core.poll(self.rig.now):
            match effect:
                case ConnectToBroker(address):
                    assert address not in self.connecting
                    assert address not in self.up
                    self.connecting.append(address)
                case RefreshHosts():
                    self.refreshing += 1
                    assert self.refreshing == 1
                case DropConnection(address):
                    assert address in self.up
                    self.lose(address)
                case SendMessage():
                    self.check_send(effect)
                    self.in_flight.append(effect)

    def check_send(self, send):
        header, entry = send.header, send.message
        assert send.address in self.up
        assert not entry.settled
        assert entry.deadline_s > self.rig.now
        name = (header.write_partition, header.sequence)
        assert self.content.setdefault(name, entry.sealed.body) == entry.sealed.body
        unsettled = [e.sequence for e in self.core.unsettled() if e.partition is entry.partition]
        assert header.first_unsettled == min(unsettled)
        assert header.first_unsettled >= self.least.get(header.write_partition, 0)
        self.least[header.write_partition] = header.first_unsettled
        if self.ordered:
            flying = {s.header.sequence for s in self.in_flight if s.address == send.address}
            assert {s for s in unsettled if s < header.sequence} <= flying

    @precondition(lambda self: self.connecting)
    @rule(data=st.data(), works=st.booleans())
    def connect(self, data, works):
        address = data.draw(st.sampled_from(self.connecting))
        self.connecting.remove(address)
        if works:
            self.up.add(address)
            self.core.connected(address)
        else:
            self.core.connect_failed(address, UnavailableError("refused"), self.rig.now)

    @precondition(lambda self: self.refreshing)
    @rule(hosts=st.lists(st.sampled_from((*ADDRESSES, "")), min_size=3, max_size=4))
    def refresh(self, hosts):
        self.refreshing -= 1
        self.core.refreshed(hosts, self.rig.now)

    @rule(
        hosts=st.lists(st.sampled_from((*ADDRESSES, "")), min_size=3, max_size=4),
        near=st.sets(st.sampled_from(ADDRESSES)),
    )
    def hosts_change(self, hosts, near):
        self.core.moved(hosts, near=near)

    @precondition(lambda self: self.refreshing)
    @rule()
    def refresh_fails(self):
        self.refreshing -= 1
        self.core.refresh_failed(UnavailableError("nobody"), self.rig.now)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def answer(self, data):
        send = data.draw(st.sampled_from(self.in_flight))
        self.in_flight.remove(send)
        self.serve(send)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), error=st.sampled_from(RETRIABLE), accept_first=st.booleans())
    def fail(self, data, error, accept_first):
        send = data.draw(st.sampled_from(self.in_flight))
        self.in_flight.remove(send)
        if accept_first:  # it was published, and only the answer was lost
            self.accept(send.header)
        self.core.failed(send.message, error, self.rig.now)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def refuse(self, data):
        send = data.draw(st.sampled_from(self.in_flight))
        self.in_flight.remove(send)
        self.core.failed(send.message, InvalidRequestError("no"), self.rig.now)

    @precondition(lambda self: self.up)
    @rule(data=st.data())
    def disconnect(self, data):
        address = data.draw(st.sampled_from(sorted(self.up)))
        self.core.disconnected(address)
        self.lose(address)

    @rule(seconds=st.sampled_from([0.01, 0.5, 3.0, 25.0]))
    def wait(self, seconds):
        self.rig.now += seconds

    def lose(self, address):
        self.up.discard(address)
        for send in [send for send in self.in_flight if send.address == address]:
            self.in_flight.remove(send)
            self.core.failed(send.message, UnavailableError("broke"), self.rig.now)

    def accept(self, header):
        """Whether the broker has the Message after this request."""
        name = (header.write_partition, header.sequence)
        if name in self.accepted:
            return True
        expected = max(self.expected.get(name[0], 0), header.first_unsettled)
        if self.ordered and header.sequence != expected:
            return False
        self.expected[name[0]] = header.sequence + 1
        self.accepted[name] = len(self.accepted)
        return True

    def serve(self, send):
        if self.accept(send.header):
            self.core.acked(send.message, WriteAnswer(offset=0))
        else:
            self.core.failed(send.message, SequenceGapError("gap"), self.rig.now)

    @invariant()
    def bounds_hold(self):
        per_link = [sum(s.address == a for s in self.in_flight) for a in ADDRESSES]
        assert max(per_link) <= 3
        assert self.core.in_flight == len(self.in_flight)
        held = {entry: len(entry.sealed.body) for entry in self.core.unsettled()}
        held |= {send.message: len(send.message.sealed.body) for send in self.in_flight}
        assert self.rig.held == sum(held.values())
        assert self.core.unsent == sum(entry.sent_s == -math.inf for entry in self.core.unsettled())

    @invariant()
    def acked_is_accepted(self):
        for delivery in self.deliveries:
            if delivery.done() and delivery.exception(0) is None:
                stored = delivery.result(0)
                assert (stored.write_partition, stored.sequence) in self.accepted

    def teardown(self):
        """When faults stop, all that has time left is acked; what has not has failed."""
        start = self.rig.now
        for _ in range(2_000):
            if not self.core.unsettled_count and not self.in_flight:
                break
            self.calm_step()
            self.rig.now = max(self.rig.now, min(self.core.wake_at_s(), self.rig.now + 1))
        assert all(delivery.done() for delivery in self.deliveries)
        assert self.rig.held == 0
        assert self.core.wake_at_s() == math.inf or not self.core.unsettled_count
        for entry, error in self.rig.errors.items():
            late = entry.deadline_s < start + 10
            assert error is None or late or not isinstance(error, DeliveryTimeoutError)
        order = sorted(self.accepted, key=self.accepted.__getitem__)
        if self.ordered:
            assert sorted(order) == sorted(order, key=lambda name: name[0])

    def calm_step(self):
        self.poll()
        while self.connecting:
            address = self.connecting.pop()
            self.up.add(address)
            self.core.connected(address)
        if self.refreshing:
            self.refreshing = 0
            self.core.refreshed(["a:1", "b:2", "c:3", "a:1"], self.rig.now)
        for send in self.in_flight[:]:
            self.in_flight.remove(send)
            self.serve(send)


class OrderedCoreMachine(CoreMachine):
    """The same in an ordered topic."""

    ordered = True


SETTINGS = settings(stateful_step_count=40)
TestAnyOrder = CoreMachine.TestCase
TestAnyOrder.settings = SETTINGS
TestOrdered = OrderedCoreMachine.TestCase
TestOrdered.settings = SETTINGS
