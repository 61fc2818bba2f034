"""The producer's state machine against a model of the brokers, and rule by rule."""

from __future__ import annotations

import math

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
    SequenceConflictError,
    SequenceGapError,
    StorageError,
    UnauthorizedError,
    UnavailableError,
    UnknownTopicError,
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
                incarnation="0" * 16,
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
        """Poll and connect until there is nothing more to do; returns what was sent."""
        sent = []
        while effects := self.poll():
            for effect in effects:
                if isinstance(effect, ConnectToBroker):
                    self.core.connected(effect.address)
                elif isinstance(effect, RefreshHosts):
                    self.core.refreshed([p.host for p in self.core._partitions], self.now)
                elif isinstance(effect, SendMessage):
                    sent.append(effect)
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


def test_acked_message_tells_where_it_is_stored():
    """An ack settles the delivery with the place that the broker told, and frees the memory."""
    rig = Rig()
    delivery = rig.submit()
    (send,) = rig.sends()
    assert (send.address, send.header.epoch, send.header.schema_id) == ("a:1", 3, "schema")
    rig.ack(send, partition=2, offset=9, batch_id="b")
    stored = delivery.result(0)
    assert (stored.topic, stored.partition, stored.offset, stored.batch_id) == ("events", 2, 9, "b")
    assert (stored.write_partition, stored.sequence, stored.duplicate) == (0, 0, False)
    assert rig.held == 0
    assert rig.core.unsettled_count == rig.core.in_flight == rig.core.unsent == 0


def test_connects_once_before_it_sends():
    """Nothing is sent before there is a connection, and one connection is asked for at a time."""
    rig = Rig()
    rig.submit()
    assert rig.poll() == [ConnectToBroker("a:1")]
    assert rig.poll() == []
    rig.core.connected("a:1")
    assert [type(effect) for effect in rig.poll()] == [SendMessage]


def test_failed_connect_backs_off_and_asks_for_hosts():
    """A broker that cannot be reached is tried again after a back-off, and the hosts are asked."""
    rig = Rig()
    rig.submit()
    rig.poll()
    rig.core.connect_failed("a:1", UnavailableError("refused"), rig.now)
    assert rig.poll() == [RefreshHosts()]
    assert rig.core.wake_at_s() == pytest.approx(rig.now + 0.025)
    rig.now += 0.025
    assert rig.poll() == [ConnectToBroker("a:1")]


def test_refresh_moves_messages_to_the_new_host():
    """Messages that wait go to the host that a refresh told."""
    rig = Rig()
    rig.submit()
    rig.poll()
    rig.core.connect_failed("a:1", UnavailableError("refused"), rig.now)
    assert rig.poll() == [RefreshHosts()]
    rig.core.refreshed(["b:2"], rig.now)
    assert rig.poll() == [ConnectToBroker("b:2")]


def test_refresh_is_not_repeated_at_once():
    """After a refresh that failed the next one waits for the interval."""
    rig = Rig([""])
    rig.submit()
    assert rig.poll() == [RefreshHosts()]
    rig.core.refresh_failed(UnavailableError("no broker"), rig.now)
    assert rig.poll() == []
    assert rig.core.wake_at_s() == rig.now + REFRESH_INTERVAL_S
    rig.now += REFRESH_INTERVAL_S
    assert rig.poll() == [RefreshHosts()]


def test_in_flight_is_bounded_per_broker():
    """Never more than max_in_flight Messages wait for the answer of one broker."""
    rig = Rig(["a:1", "b:2"], max_in_flight=2)
    for _ in range(10):
        rig.submit()
    sends = rig.sends()
    assert sorted(send.address for send in sends) == ["a:1", "a:1", "b:2", "b:2"]
    assert rig.core.unsent == 6
    rig.ack(sends[0])
    (more,) = rig.sends()
    assert more.address == sends[0].address


def test_messages_go_round_robin_over_write_partitions():
    """Unordered Messages spread evenly, and each write partition counts its own sequences."""
    rig = Rig(["a:1"] * 3, max_in_flight=100)
    for _ in range(6):
        rig.submit()
    names = sorted((send.header.write_partition, send.header.sequence) for send in rig.sends())
    assert names == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]


def test_ordered_producer_uses_one_write_partition():
    """With producer ordering all Messages have one write partition."""
    rig = Rig(["a:1"] * 3, ordered=True, max_in_flight=100)
    for _ in range(6):
        rig.submit()
    sends = rig.sends()
    assert len({send.header.write_partition for send in sends}) == 1
    assert sequences(sends) == list(range(6))


@pytest.mark.parametrize("ordered", [False, True])
def test_message_of_a_write_partition_goes_there(ordered):
    """A Message that names its write partition belongs to it; others take turns as ever."""
    rig = Rig(["a:1", "b:1", "c:1"], ordered=ordered)
    plain = Rig(["a:1", "b:1", "c:1"], ordered=ordered)
    for place in (2, None, 0, None, 2):
        rig.submit(write_partition=place)
        if place is None:
            plain.submit()

    names = [(message.partition.number, message.sequence) for message in rig.submitted]
    assert [number for number, _ in names][::2] == [2, 0, 2]
    assert [names[1][0], names[3][0]] == [m.partition.number for m in plain.submitted]


def test_ordered_write_partitions_do_not_wait_for_each_other():
    """In an ordered topic a failure in one write partition holds up none of another's Messages."""
    rig = Rig(["a:1", "b:1"], ordered=True)
    for place in (0, 1, 0, 1):
        rig.submit(write_partition=place)
    first, *others = rig.sends()
    assert len(others) == 3
    rig.fail(first, StorageError("slow"))
    for send in others:
        if send.message.partition.number == 1:
            rig.ack(send)
    assert rig.core.unsettled_count == 2


def test_retry_sends_the_same_name_and_bytes_after_a_back_off():
    """A retriable error makes the very same Message go again, but not at once."""
    rig = Rig()
    delivery = rig.submit(b"same")
    (first,) = rig.sends()
    rig.fail(first, StorageError("slow down"))
    assert rig.sends() == []
    rig.now += 0.025
    (again,) = rig.sends()
    assert again.header == first.header
    assert again.message.sealed.body == b"same"
    rig.ack(again)
    assert delivery.result(0).sequence == 0


def test_waiting_retry_does_not_hold_up_others():
    """In an unordered topic a Message in back-off blocks no other."""
    rig = Rig()
    rig.submit()
    (first,) = rig.sends()
    rig.fail(first, StorageError("slow down"))
    rig.submit()
    assert sequences(rig.sends()) == [1]


def test_ordered_retry_goes_before_what_is_behind_it():
    """In an ordered topic nothing overtakes a Message in back-off, and a gap is resent in order."""
    rig = Rig(ordered=True)
    for _ in range(4):
        rig.submit()
    sends = rig.sends()
    assert sequences(sends) == [0, 1, 2, 3]
    rig.fail(sends[1], UnavailableError("draining"))
    rig.fail(sends[3], SequenceGapError("3 before 1"))
    rig.fail(sends[2], SequenceGapError("2 before 1"))
    rig.submit()
    assert rig.sends() == []
    rig.ack(sends[0])
    assert sequences(rig.sends()) == [1, 2]


def test_ordered_message_does_not_wait_for_what_its_neighbour_did():
    """Refused for the sake of the one before it, a Message goes at once when that one is acked."""
    rig = Rig(ordered=True)
    for _ in range(3):
        rig.submit()
    for send in rig.sends():
        rig.fail(send, UnavailableError("cut"))
    assert rig.sends() == []
    rig.now += 0.025
    (first,) = rig.sends()
    assert first.header.sequence == 0
    rig.ack(first)
    assert sequences(rig.sends()) == [1, 2]


def test_ordered_gap_is_nobodys_failure():
    """However often a Message comes too early, its own back-off stays what it was."""
    rig = Rig(ordered=True)
    rig.submit()
    for _ in range(20):
        (send,) = rig.sends()
        rig.fail(send, SequenceGapError("a Batch before this one failed"))
        rig.now += 0.025


def test_ordered_topic_sends_few_after_a_failure_and_more_with_each_ack():
    """What is refused was sent for nothing: after a failure one is in flight, then more again."""
    rig = Rig(ordered=True, max_in_flight=8)
    for _ in range(12):
        rig.submit()
    sends = rig.sends()
    rig.fail(sends[0], UnavailableError("no room"))
    for send in sends[1:]:
        rig.fail(send, SequenceGapError("gap"))
    rig.now += 0.025
    flying = rig.sends()
    for window in (1, 2, 3, 4):
        assert len(flying) == window
        rig.ack(flying.pop(0))
        flying += rig.sends()


def test_ordered_move_waits_for_the_old_host():
    """In an ordered topic nothing is sent to a new host while the old one has something."""
    rig = Rig(ordered=True)
    rig.submit()
    rig.submit()
    first, second = rig.sends()
    rig.fail(first, NotHostedError("moved", "b:2"))
    assert rig.sends() == []
    rig.fail(second, SequenceGapError("gap"))
    rig.now += 1
    assert [(s.header.sequence, s.address) for s in rig.sends()] == [(0, "b:2"), (1, "b:2")]


def test_first_unsettled_passes_what_was_given_up():
    """`first_unsettled` is the least sequence that may still be sent."""
    rig = Rig(max_in_flight=100)
    for _ in range(3):
        rig.submit()
    sends = rig.sends()
    rig.ack(sends[1])
    rig.submit()
    (send,) = rig.sends()
    assert send.header.first_unsettled == 0
    rig.fail(sends[0], InvalidRequestError("bad"))
    rig.submit()
    (send,) = rig.sends()
    assert (send.header.sequence, send.header.first_unsettled) == (4, 2)


def test_redirect_is_followed_at_once_and_then_backs_off():
    """A named host is tried at once; a second redirect in a row waits."""
    rig = Rig()
    rig.submit()
    (send,) = rig.sends()
    rig.fail(send, NotHostedError("moved", "b:2"))
    (send,) = rig.sends()
    assert send.address == "b:2"
    rig.fail(send, NotHostedError("moved", "a:1"))
    assert rig.sends() == []
    rig.now += 0.025
    (send,) = rig.sends()
    assert send.address == "a:1"


def test_redirect_without_address_asks_for_the_hosts():
    """`NotHostedError` that names nobody leads to a refresh."""
    rig = Rig()
    rig.submit()
    (send,) = rig.sends()
    rig.fail(send, NotHostedError("not mine"))
    assert RefreshHosts() in rig.poll()


def test_deadline_fails_what_waits():
    """A Message that cannot be sent by its deadline fails with the last error in the text."""
    rig = Rig()
    delivery = rig.submit()
    rig.poll()
    rig.core.connect_failed("a:1", UnavailableError("connection refused"), rig.now)
    rig.now += DEADLINE_S - 0.001
    rig.poll()
    assert not delivery.done()
    rig.now += 0.001
    rig.poll()
    assert isinstance(delivery.exception(0), DeliveryTimeoutError)
    assert "connection refused" in str(delivery.exception(0))
    assert rig.held == 0


def test_deadline_in_flight_frees_memory_with_the_answer():
    """In flight the deadline fails the delivery, but the memory waits for the connection."""
    rig = Rig()
    delivery = rig.submit(b"12345")
    rig.now += DEADLINE_S - 1
    (send,) = rig.sends()
    rig.now += 1
    rig.poll()
    assert isinstance(delivery.exception(0), DeliveryTimeoutError)
    assert (rig.held, rig.core.in_flight) == (5, 1)
    rig.ack(send)
    assert (rig.held, rig.core.in_flight) == (0, 0)
    assert isinstance(delivery.exception(0), DeliveryTimeoutError)


def test_silent_broker_is_dropped_once():
    """A broker that does not answer has its connection dropped, once, and is tried anew."""
    rig = Rig()
    rig.submit()
    (send,) = rig.sends()
    assert rig.core.wake_at_s() == rig.now + ANSWER_S
    rig.now += ANSWER_S
    assert rig.poll() == [DropConnection("a:1")]
    assert rig.poll() == []
    rig.fail(send, UnavailableError("connection broke"))
    rig.now += 0.025
    assert [type(effect) for effect in rig.poll()] == [ConnectToBroker, RefreshHosts]


def test_lost_connection_is_opened_again():
    """After a disconnect the next Message asks for a connection."""
    rig = Rig()
    rig.submit()
    (send,) = rig.sends()
    rig.core.disconnected("a:1")
    rig.fail(send, UnavailableError("broke"))
    rig.now += 0.025
    assert ConnectToBroker("a:1") in rig.poll()


@pytest.mark.parametrize("error", [InvalidRequestError("x"), SequenceConflictError("y")])
def test_refused_message_fails_alone(error):
    """An error about one Message fails that Message and no other."""
    rig = Rig()
    deliveries = [rig.submit(), rig.submit()]
    sends = rig.sends()
    rig.fail(sends[0], error)
    rig.ack(sends[1])
    assert deliveries[0].exception(0) is error
    assert deliveries[1].result(0).sequence == 1
    assert rig.core.error is None


@pytest.mark.parametrize("more_hosts", [(), ("",)], ids=["", "one moves"])
def test_token_is_wrong_once_every_host_refuses_it(more_hosts):
    """One host that refuses the token is tried again; when all of them do the producer ends."""
    rig = Rig(("a:1", "b:2", *more_hosts))
    deliveries = [rig.submit() for _ in range(2)]
    rig.poll()
    refused = UnauthorizedError("wrong")
    rig.core.connect_failed("a:1", refused, rig.now)
    assert rig.core.error is None
    rig.core.connected("b:2")
    assert [send.address for send in rig.sends() if send.address == "b:2"] == ["b:2"]
    rig.core.disconnected("b:2")
    rig.core.connect_failed("b:2", refused, rig.now)
    assert rig.core.error is refused
    assert deliveries[0].exception(0) is refused


@pytest.mark.parametrize("then", ["takes it", "is away"])
def test_token_is_not_wrong_by_what_a_host_said_before(then):
    """What counts is the last answer of each: one may have been late with a new token."""
    rig = Rig(("a:1", "b:2"))
    rig.submit()
    rig.poll()
    refused = UnauthorizedError("wrong")
    rig.core.connect_failed("a:1", refused, rig.now)
    if then == "takes it":
        rig.core.connected("a:1")
        rig.core.disconnected("a:1")
    else:
        rig.core.connect_failed("a:1", UnavailableError("away"), rig.now)
    rig.core.connect_failed("b:2", refused, rig.now)
    assert rig.core.error is None
    rig.core.connect_failed("a:1", refused, rig.now)
    assert rig.core.error is refused


def test_token_that_a_host_refuses_is_not_wrong_while_there_is_no_host():
    """Its write partitions moved away meanwhile: the next host may take the token."""
    rig = Rig()
    delivery = rig.submit()
    rig.poll()
    rig.core.moved([""])
    rig.core.connect_failed("a:1", UnauthorizedError("wrong"), rig.now)
    assert rig.core.error is None
    rig.core.moved(["b:2"])
    rig.poll()
    rig.core.connected("b:2")
    (send,) = rig.sends()
    rig.ack(send)
    assert delivery.result(0).sequence == 0


@pytest.mark.parametrize("error", [ProducerFencedError("x"), UnknownTopicError("y")])
def test_fatal_error_fails_everything(error):
    """A fatal error fails what is in flight, what waits and what comes later."""
    rig = Rig(max_in_flight=1)
    deliveries = [rig.submit(), rig.submit()]
    (send,) = rig.sends()
    rig.fail(send, error)
    deliveries.append(rig.submit())
    assert [delivery.exception(0) for delivery in deliveries] == [error] * 3
    assert rig.sends() == []
    assert rig.held == 0
    assert rig.core.wake_at_s() == math.inf


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


def test_only_the_first_reason_ends_it():
    """Whatever comes after the error that ended the producer changes nothing of it."""
    rig = Rig()
    first, later = ProducerFencedError("first"), ClosedError("later")
    rig.core.end(first)
    rig.core.end(later)
    rig.core.refresh_failed(UnknownTopicError("later"), rig.now)
    assert rig.core.error is first
    assert rig.submit().exception(0) is first
    assert len(rig.submitted) == len(rig.errors) == 1


def test_back_off_of_a_broker_that_was_reached_begins_anew():
    """Failures to connect count until one succeeds, and a Message's until it is settled."""
    rig = Rig()
    rig.submit()

    def wait_s():
        assert ConnectToBroker("a:1") in rig.poll()
        rig.core.connect_failed("a:1", UnavailableError("refused"), rig.now)
        rig.poll()
        rig.core.refreshed(["a:1"], rig.now)
        waited_s = rig.core._links["a:1"].retry_s - rig.now
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
    at_once = []
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


def test_hosts_are_asked_for_while_the_first_message_backs_off():
    """A write partition that has lost its host does not wait for a back-off to ask for another."""
    rig = Rig()
    rig.submit()
    (send,) = rig.sends()
    rig.fail(send, StorageError("slow down"))
    rig.core.moved([""])
    assert rig.poll() == [RefreshHosts()]


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


@pytest.mark.parametrize("opened", ["before", "meanwhile"])
def test_a_connection_outlives_that_its_broker_hosts_nothing(opened):
    """A write partition that goes away and comes back finds the connection that there was."""
    rig = Rig()
    rig.submit()
    assert rig.poll() == [ConnectToBroker("a:1")]
    if opened == "before":
        rig.core.connected("a:1")
    rig.core.moved(["b:2"])
    assert rig.poll() == [ConnectToBroker("b:2")]
    rig.core.moved(["a:1"])
    assert ConnectToBroker("a:1") not in rig.poll()
    rig.core.connected("a:1")
    rig.poll()
    assert rig.core.in_flight == 1


def test_each_silent_broker_is_dropped():
    """Two brokers that leave Messages unanswered lose their connections in one turn."""
    rig = Rig(("a:1", "b:2"))
    for _ in range(2):
        rig.submit()
    assert len(rig.sends()) == 2
    rig.now += ANSWER_S
    assert sorted(rig.poll()) == [DropConnection("a:1"), DropConnection("b:2")]


def test_write_partitions_of_one_broker_take_turns():
    """Where few Messages may be in flight no write partition is served before all the others."""
    rig = Rig(["a:1"] * 3, max_in_flight=1)
    for _ in range(12):
        rig.submit()
    served = []
    for _ in range(12):
        (send,) = rig.sends()
        served.append(send.header.write_partition)
        rig.ack(send)
    assert all(sorted(served[at : at + 3]) == [0, 1, 2] for at in range(0, 12, 3))


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


def test_the_first_deadline_is_woken_for():
    """While nothing can be sent it wakes up when the oldest Message fails."""
    rig = Rig()
    deliveries = []
    for _ in range(2):
        deliveries.append(rig.submit())
        rig.now += 1
    rig.poll()
    for left_s, failed in ((DEADLINE_S - 2, [True, False]), (1, [True, True])):
        assert rig.core.wake_at_s() == pytest.approx(rig.now + left_s)
        rig.now += left_s
        rig.poll()
        assert [delivery.done() for delivery in deliveries] == failed
    assert [message.sealed.body for message in rig.submitted] == [b"", b""]


def test_ordered_producers_spread_over_write_partitions():
    """Each has one write partition, and many producers have all of them."""
    used = set()
    for number in range(40):
        rig = Rig(["a:1"] * 4, ordered=True, producer_id=f"job-{number}")
        rig.submit()
        used.add(rig.submitted[0].partition.number)
    assert used == {0, 1, 2, 3}


@pytest.mark.parametrize("trouble", ["", "broker a:1: the object store refuses"])
def test_a_deadline_tells_why(trouble):
    """What a broker says of its services tells more than the last error."""
    rig = Rig()
    delivery = rig.submit()
    rig.poll()
    rig.core.connect_failed("a:1", UnavailableError("refused"), rig.now)
    rig.core.trouble = trouble
    rig.now += DEADLINE_S
    rig.poll()
    assert str(delivery.exception(0)).endswith(f"; {trouble or 'last error: refused'}")


def test_who_keeps_the_oldest_message():
    """Asked who keeps a Message waiting, it names the broker that has it, or that is to get it."""
    rig = Rig(max_in_flight=1)
    assert rig.core.overdue(rig.now + 1_000, 5) == ("", "")
    for _ in range(2):
        rig.submit()
    (send,) = rig.sends()
    assert rig.core.overdue(rig.now + 4.9, 5) == ("", "")
    assert rig.core.overdue(rig.now + 5, 5) == ("a:1", "")
    rig.core.moved(["b:2"])
    assert rig.core.overdue(rig.now + 5, 5) == ("a:1", "")
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
    rig.submit()
    assert rig.core.overdue(rig.now + 5, 5) == ("b:2", "")


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


def test_nothing_is_done_after_the_end():
    """Once it is over nothing is connected to, refreshed or waited for."""
    rig = Rig()
    rig.submit()
    rig.poll()
    rig.core.connect_failed("a:1", UnavailableError("refused"), rig.now)
    rig.core.end(ClosedError("closed"))
    rig.now += 100
    assert rig.poll() == []
    assert rig.core.wake_at_s() == math.inf


def test_new_write_partitions_are_used():
    """Write partitions that were added are used by producers with a random id."""
    rig = Rig(["a:1"], max_in_flight=100)
    rig.core.refreshed(["a:1", "a:1"], rig.now)
    for _ in range(4):
        rig.submit()
    assert {send.header.write_partition for send in rig.sends()} == {0, 1}


@pytest.mark.parametrize("options", [{"ordered": True}, {"fixed": True}])
def test_new_write_partitions_are_left_alone(options):
    """A producer whose Messages belong to fixed write partitions does not take new ones."""
    rig = Rig(["a:1"], max_in_flight=100, **options)
    rig.core.refreshed(["a:1", "a:1"], rig.now)
    for _ in range(4):
        rig.submit()
    assert {send.header.write_partition for send in rig.sends()} == {0}


def partitions(rig, count):
    """Write partitions that so many Messages go to."""
    for _ in range(count):
        rig.submit()
    return sorted({send.header.write_partition for send in rig.sends()})


def test_messages_stay_near():
    """What may go anywhere goes to write partitions with a host that is near."""
    rig = Rig(("a:1", "b:2", "a:1", "c:3"), near={"a:1"}, max_in_flight=64)
    assert partitions(rig, 8) == [0, 2]
    rig.core.refreshed(("b:2", "a:1", "b:2", "b:2"), rig.now, near={"a:1"})
    assert partitions(rig, 8) == [1]
    rig.core.moved(("b:2", "a:1", "b:2", "b:2"), near={"c:3"})
    assert partitions(rig, 8) == [0, 1, 2, 3]


def test_messages_that_were_named_stay_where_they_belong():
    """A Message keeps its write partition, however far its host is by then."""
    rig = Rig(("a:1", "b:2"), near={"a:1"})
    rig.submit()
    rig.core.moved(("b:2", "a:1"), near={"a:1"})
    (send,) = rig.sends()
    assert (send.header.write_partition, send.address) == (0, "b:2")


def test_a_redirect_may_lead_away():
    """A write partition whose host was near is no more when the host has changed."""
    rig = Rig(("a:1", "a:1"), near={"a:1"}, max_in_flight=64)
    rig.submit(write_partition=0)
    (send,) = rig.sends()
    rig.fail(send, NotHostedError("moved", "b:2"))
    assert partitions(rig, 0) == [0]
    assert partitions(rig, 8) == [1]


@pytest.mark.parametrize("options", [{"ordered": True}, {"fixed": True}])
def test_order_and_names_come_before_zones(options):
    """Where the write partition means something it is not chosen by where its host is."""
    at_home = Rig(("a:1",) * 4, max_in_flight=64, **options)
    abroad = Rig(("a:1", "b:2", "c:3", "d:4"), near={"d:4"}, max_in_flight=64, **options)
    assert partitions(abroad, 8) == partitions(at_home, 8)


def test_a_write_partition_without_a_host_waits():
    """Nobody is connected to; the hosts are asked for again and again, until there is one."""
    rig = Rig(("",))
    delivery = rig.submit()
    for _ in range(3):
        assert rig.poll() == [RefreshHosts()]
        rig.core.refreshed(("",), rig.now)
        assert rig.poll() == []
        assert rig.core.wake_at_s() == rig.now + REFRESH_INTERVAL_S
        rig.now += REFRESH_INTERVAL_S
    rig.core.moved(("b:2",))
    assert ConnectToBroker("b:2") in rig.poll()
    assert not delivery.done()


def test_repr_shows_the_state():
    """The repr counts what is unsettled, in flight and never sent."""
    rig = Rig(max_in_flight=1)
    rig.submit()
    rig.submit()
    rig.sends()
    assert repr(rig.core) == "<ProducerStateMachine p [2 unsettled | 1 in flight | 1 never sent]>"


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

    @rule(count=st.integers(1, 4))
    def submit(self, count):
        for _ in range(count):
            body = b"%d" % len(self.deliveries)
            self.deliveries.append(self.rig.submit(body))

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
            assert order == sorted(order)

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


def test_unexpected_error_type_is_still_an_outcome():
    """Even the root error, which nobody expects, fails the Message and leaves the rest alone."""
    rig = Rig()
    delivery = rig.submit()
    (send,) = rig.sends()
    rig.fail(send, MemqError("internal: boom"))
    assert type(delivery.exception(0)) is MemqError
    assert rig.core.error is None
