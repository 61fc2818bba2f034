"""How fast an ordered topic moves under pressure, in virtual time: many in flight against one."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque

import pytest

from memq.client.producer.accumulator import SealedMessage
from memq.client.producer.delivery import Delivery
from memq.client.producer.state_machine import (
    ConnectToBroker,
    DropConnection,
    ProducerStateMachine,
    RefreshHosts,
    SendMessage,
    StateMachineOptions,
)
from memq.core.wire.messages import WriteAnswer
from memq.errors import SequenceGapError, UnavailableError

WAY_S = 0.001  # from the producer to the broker, and back


class World:
    """One producer, and a broker whose write partition has one slot, on a clock of their own.

    The broker takes what a connection brings in turn. While its slot is taken it holds a Message
    for `park_s` at most and then refuses it, reading no further meanwhile; what came before its
    predecessor it refuses at once.
    """

    def __init__(self, *, max_in_flight, store_s, park_s, cut_s, rivals=0):
        self.now, self.sent, self.acks = 0.0, 0, []
        self._events, self._order = [], itertools.count()
        self._chance = random.Random(7)
        self._store_s, self._park_s = store_s, park_s
        self._life, self._pipe, self._flying = 0, deque(), {}
        self._slot, self._held, self._accepted = None, None, 0
        self.core = ProducerStateMachine(
            StateMachineOptions("t", "", "p", 0, -1, True, False, max_in_flight, 1e6, 1e6),
            ["a:1"],
            release=lambda _: None,
            on_submitted=lambda _: None,
            on_settled=lambda *_: self.acks.append(self.now),
            randomness=self._chance.random,
        )
        if cut_s < math.inf:
            self._at(cut_s, self._cut, cut_s)
        for number in range(rivals):
            self._at(number * store_s, self._rival)

    def run(self, seconds, backlog=100):
        """Write all the time; returns acks a second."""
        while self.now < seconds:
            while self.core.unsettled_count < backlog:
                self.core.submit(SealedMessage(b"x", 1, "s", 1, 0, 0, self.now, Delivery()))
            for effect in self.core.poll(self.now):
                match effect:
                    case ConnectToBroker(address):
                        self._at(WAY_S, self.core.connected, address)
                    case SendMessage():
                        self.sent += 1
                        self._flying[effect.message] = self._life
                        self._at(WAY_S, self._arrive, effect, self._life)
                    case RefreshHosts():
                        self.core.refreshed(["a:1"], self.now)
                    case DropConnection():
                        raise AssertionError("the broker always answers")
            wake_s = self.core.wake_at_s()
            if self._events and self._events[0][0] <= wake_s:
                self.now, _, act, arguments = heapq.heappop(self._events)
                act(*arguments)
            else:
                self.now = max(self.now, wake_s)
        return len(self.acks) / seconds

    def _at(self, delay_s, act, *arguments):
        heapq.heappush(self._events, (self.now + delay_s, next(self._order), act, arguments))

    # -- the broker -------------------------------------------------------------------------

    def _arrive(self, send, life):
        if life == self._life:
            self._pipe.append(send)
            self._read()

    def _read(self):
        while self._pipe and self._held is None:
            send = self._pipe.popleft()
            header = send.header
            expected = max(self._accepted, header.first_unsettled)
            if header.sequence < expected:
                self._answer(send, None)  # a repeat
            elif header.sequence > expected:
                self._answer(send, SequenceGapError("resend in order"))
            elif self._slot is None:
                self._accept(send)
            else:
                self._held = send
                self._at(self._park_s, self._refuse_held, send)

    def _accept(self, send):
        self._accepted = send.header.sequence + 1
        self._take_slot(send)

    def _take_slot(self, send):
        self._slot = send or "rival"
        self._at(self._store_s, self._stored, send)

    def _stored(self, send):
        self._slot = None
        if send is not None:
            self._answer(send, None)
        if self._held is not None:
            held, self._held = self._held, None
            self._accept(held)
        self._read()

    def _rival(self):
        """Another producer: it takes the slot when it is free, for a third of the time."""
        if self._slot is None:
            self._take_slot(None)
        self._at(2 * self._store_s, self._rival)

    def _refuse_held(self, send):
        if self._held is send:
            self._held = None
            self._answer(send, UnavailableError("no room came"))
            self._read()

    def _answer(self, send, error):
        self._at(WAY_S, self._answered, send, error, self._flying.get(send.message))

    def _answered(self, send, error, life):
        if life != self._life or self._flying.pop(send.message, None) is None:
            return
        if error is None:
            self.core.acked(send.message, WriteAnswer())
        else:
            self.core.failed(send.message, error, self.now)

    def _cut(self, every_s):
        self._life += 1
        self._pipe.clear()
        self._held = None
        self.core.disconnected("a:1")
        flying, self._flying = self._flying, {}
        for entry in flying:
            self.core.failed(entry, UnavailableError("cut"), self.now)
        self._at(every_s, self._cut, every_s)


@pytest.mark.parametrize("cut_s", [math.inf, 0.2])
@pytest.mark.parametrize("rivals", [0, 1])
@pytest.mark.parametrize(("store_s", "park_s"), [(0.02, 0.01), (0.1, 0.01), (0.02, 0.1), (0.5, 1)])
def test_many_in_flight_are_as_fast_as_one(store_s, park_s, rivals, cut_s):
    """Under pressure an ordered topic moves with 16 in flight at least as fast as with 1."""
    one, many = (
        World(max_in_flight=count, store_s=store_s, park_s=park_s, cut_s=cut_s, rivals=rivals)
        for count in (1, 16)
    )
    assert many.run(30) >= 0.98 * one.run(30)
    # Most of the time the next Message is on its way as well, and may be refused: not all 16.
    assert many.sent / len(many.acks) <= one.sent / len(one.acks) + 1.5
