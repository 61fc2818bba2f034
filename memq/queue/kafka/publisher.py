"""What a broker writes to Kafka: in turns, by transactions, for write partitions that it owns.

`memq.queue.kafka.queue` has the theory of operation. One thing is done at a time, in the order in
which they were asked for: a transaction of all the calls that wait, a claim, or whatever else must
come between what was asked for before and after it. What takes long, as to fence others may while
Kafka is slow, is not done there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from memq.core.clock import SavedTimes
from memq.core.queue import not_owned
from memq.errors import (
    ClosedError,
    FencedError,
    MemqError,
    PublishUncertainError,
    QueueError,
    QueueFailedError,
    UnknownTopicError,
)
from memq.queue.kafka.state import times_record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from memq.queue.kafka.client import KafkaClient, NewRecord, OnFailure, Transactions
    from memq.queue.kafka.state import StateTopic
    from memq.runtime.system import Runtime

log = logging.getLogger(__name__)

ATTEMPTS = 5  # to own what others want as well, or to write with another producer
MAX_WAITING = 10_000  # calls that wait for a transaction; as in the embedded queue
ROUND_BYTES = 16 << 20  # of one transaction, about,
ROUND_RECORDS = 20_000  # and records; Kafka's client holds 100,000
MAX_FENCED = 10_000  # transactional ids that are known to be over

_Result = TypeVar("_Result")

Owner = tuple[str, int]
"""Topic of the queue and write partition."""


@dataclass(eq=False, slots=True)
class _Call:
    """Records that wait for a transaction.

    Attributes:
        records: to write.
        owner: the write partition that they are written for; None when nobody has to own one.
        doubtful: they are notifications: when their outcome is not known, the write partition
            takes no more of them.
        cancelled: nobody waits any more; it is not begun then.
        offsets: of the records, once they are written.
        error: why they are not.
    """

    records: Sequence[NewRecord]
    owner: Owner | None
    doubtful: bool
    cancelled: bool = False
    offsets: list[int] | None = None
    error: MemqError | None = None

    @property
    def ended(self) -> bool:
        return self.error is not None or self.offsets is not None

    @property
    def size_bytes(self) -> int:
        return sum(len(each.value or b"") + 100 for each in self.records)


class Publisher:
    """Writes for one broker.

    Args:
        client: of Kafka.
        state_topic: in which claims are.
        name: of the broker in its cluster; the beginning of its transactional ids.
        broker_id: of the broker, under which its times are kept.
        runtime: chance, for transactional ids.
        see_topic: sees all that was published to a topic of the queue up to now.
        on_written: told the records of each transaction, and their offsets.
        on_failure: told of a bug, after which nothing is written any more.
    """

    def __init__(
        self,
        client: KafkaClient,
        state_topic: StateTopic,
        *,
        name: str,
        broker_id: str,
        runtime: Runtime,
        see_topic: Callable[[str], Awaitable[None]],
        on_written: Callable[[Sequence[NewRecord], Sequence[int]], None],
        on_failure: OnFailure,
    ) -> None:
        self._client = client
        self._state_topic = state_topic
        self._name = name
        self._broker_id = broker_id
        self._runtime = runtime
        self._see_topic = see_topic
        self._on_written = on_written
        self._on_failure = on_failure
        self._waiting: deque[_Call] = deque()
        self._turns: dict[asyncio.Task[Any], None] = {}
        self._turn_lock = asyncio.Lock()
        self._broken: Exception | None = None
        # Of the producer. Only turns use it, one after the other.
        self._producer: Transactions | None = None
        self._id = ""
        self._ids: dict[str, None] = {}  # the producer's, and those before it that may have claims
        self._loose: dict[str, None] = {}  # those before it that may have a transaction to end
        self._claimed: dict[Owner, None] = {}  # by us, as far as is known,
        self._owned: dict[Owner, None] = {}  # and all that was published for them is seen
        self._doubtful: dict[Owner, None] = {}
        self._reclaim = False
        self._fenced: OrderedDict[str, None] = OrderedDict()
        self._fencing = asyncio.Lock()
        self._times = self._said_times = SavedTimes(0, 0)

    def __repr__(self) -> str:
        return f"<Publisher {self._id} [{len(self._owned)} owned | {len(self._waiting)} waiting]>"

    async def start(self) -> None:
        """Fence the earlier lives of this broker, whose transactions may be open.

        What they have said of the time is where this life goes on. What they have claimed it may
        release: nobody else does, and others wait for a broker that lives. A transaction that
        another broker left open hides such claims for up to 20 s, so all is read before.
        """
        await self._adopt()
        await self._state_topic.see_all()
        await self._adopt()
        state = self._state_topic.state
        said = state.times.get(self._broker_id, SavedTimes(0, 0))
        self._times = self._said_times = said

    async def close(self) -> None:
        """End all turns; those who wait are told why."""
        turns = [*self._turns]
        for turn in turns:
            turn.cancel()
        await asyncio.gather(*turns, return_exceptions=True)
        if self._producer is not None:
            self._producer.close()

    def owns(self, owner: Owner) -> bool:
        """Return whether it is owned here, as far as is known."""
        return owner in self._owned and self._is_ours(owner)

    def doubt(self, owner: Owner) -> None:
        """Publish nothing more for a write partition until it is fenced again."""
        if owner in self._owned:
            self._doubtful[owner] = None

    def forget_topic(self, topic: str) -> None:
        """Forget what was claimed of a topic that was deleted, here or by another broker."""
        self._forget([owner for owner in self._claimed if owner[0] == topic])

    # -- what is asked for ------------------------------------------------------------------

    async def write(
        self, records: Sequence[NewRecord], owner: Owner | None = None, *, doubtful: bool = False
    ) -> list[int]:
        """Write records durably, all or none. Returns their offsets.

        Raises:
            FencedError: the write partition that they are written for is not owned here.
            PublishUncertainError: they may have been written.
            QueueError: they were not.
        """
        call = _Call(records, owner, doubtful)
        try:
            await self._turn(lambda: self._commit_waiting(call), call)
        except asyncio.CancelledError:
            call.cancelled = True
            raise
        except (ClosedError, QueueFailedError):
            if not call.ended:
                raise  # else an earlier turn has carried it out
        if call.error is not None:
            raise call.error
        return call.offsets or []

    async def save_times(self, times: SavedTimes) -> None:
        """Say how far time has come; running time is what it was, if that is later."""
        running_ms = max(times.running_ms, self._times.running_ms)
        self._times = SavedTimes(running_ms, times.wall_ms)
        await self.write([])  # each transaction takes them along, if it has nothing else as well

    async def settle(self) -> None:
        """See to it that it is decided what becomes of all that was asked for before."""
        await self._turn(self._settle)

    async def fence(self, topic: str, write_partitions: Sequence[int], *, again: bool) -> None:
        """Own write partitions, and see all that was published; see the theory of operation."""
        wanted = [(topic, each) for each in write_partitions]
        for _ in range(ATTEMPTS):
            if not again:
                await self._fence_others(wanted)
            if await self._turn(lambda: self._claim_fenced(wanted, again=again)):
                break
        else:
            raise QueueError(f"others claim {wanted} as well, again and again; try again")
        await self._see_topic(topic)  # others' open transactions may hold this up, not our own
        if not all(self._is_ours(owner) for owner in wanted):
            raise QueueError(
                f"write partitions of {topic!r} were claimed by others, or released; try again"
            )
        for owner in wanted:
            self._owned[owner] = None
            self._doubtful.pop(owner, None)

    async def release(self, topic: str, write_partitions: Sequence[int]) -> None:
        """Take our claims back, those of fences that have failed as well.

        Raises:
            QueueError: they may be taken back, or not.
        """
        wanted = [(topic, each) for each in write_partitions]
        await self._turn(lambda: self._release(wanted))

    # -- turns ------------------------------------------------------------------------------

    async def _turn(
        self, work: Callable[[], Awaitable[_Result]], call: _Call | None = None
    ) -> _Result:
        """Do something in its turn, to its end even when the caller is cancelled.

        A call is carried out by then, perhaps in an earlier turn: each takes the first that wait.
        """
        if len(self._turns) >= MAX_WAITING:
            raise QueueError(
                f"{MAX_WAITING} calls wait for Kafka already; try again, and look at Kafka"
            )
        if call is not None:
            self._waiting.append(call)
        turn = asyncio.get_running_loop().create_task(self._in_turn(work))
        self._turns[turn] = None
        turn.add_done_callback(self._ended)
        try:
            return await asyncio.shield(turn)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if turn.cancelled() and not (caller and caller.cancelling()):
                raise ClosedError("this queue was closed before it was done") from None
            raise

    def _ended(self, turn: asyncio.Task[Any]) -> None:
        del self._turns[turn]
        if not turn.cancelled():
            turn.exception()  # waiters are told; there may be none any more

    async def _in_turn(self, work: Callable[[], Awaitable[_Result]]) -> _Result:
        try:
            async with self._turn_lock:
                self._check_works()
                return await work()
        except MemqError:
            raise
        except Exception as exc:  # a bug; the caller is told as well
            self._on_failure("what publishes to Kafka", exc)
            self._broken = exc
            raise QueueFailedError(f"nothing is written to Kafka any more: {exc!r}") from exc

    def _check_works(self) -> None:
        if self._broken is not None:
            raise QueueFailedError(f"nothing is written to Kafka any more: {self._broken!r}")

    async def _commit_waiting(self, call: _Call) -> None:
        """Write a call with all that wait, unless an earlier turn has.

        Then this turn writes nothing: those who were told of their offsets in that turn call again
        one after the other, and their calls are to gather.
        """
        if not call.ended and (calls := self._next_calls()):
            await self._commit(calls)

    def _next_calls(self) -> list[_Call]:
        """Take the calls of one transaction: all that wait, but of so much."""
        calls: list[_Call] = []
        size_bytes = count = 0
        while self._waiting and size_bytes < ROUND_BYTES and count < ROUND_RECORDS:
            call = self._waiting.popleft()
            if not call.cancelled:
                calls.append(call)
                size_bytes += call.size_bytes
                count += len(call.records)
        return calls

    # -- transactions -----------------------------------------------------------------------

    async def _commit(self, calls: list[_Call]) -> None:
        """Write the records of all calls in one transaction, and tell each of them."""
        try:
            await self._commit_owned(calls)
        except PublishUncertainError as exc:
            for call in calls:
                if call.owner is not None and call.doubtful and call.error is None:
                    self.doubt(call.owner)
            _fail(calls, exc)
        except (UnknownTopicError, QueueFailedError) as exc:
            if len(calls) == 1:
                _fail(calls, exc)
            else:
                for call in calls:  # one of them is to blame; the others need not suffer
                    await self._commit([call])
        except MemqError as exc:
            _fail(calls, exc)

    async def _commit_owned(self, calls: Sequence[_Call]) -> None:
        for _ in range(ATTEMPTS):
            producer = await self._ready_producer()
            calls = [each for each in calls if self._may_write(each)]
            if not calls:
                return
            records = [record for call in calls for record in call.records]
            times = self._times_with(records)
            try:
                offsets = await self._commit_with(producer, records, times)
            except FencedError as exc:  # and nothing was written
                log.warning("%s; going on with another producer", exc)
            else:
                _tell(calls, offsets)
                return
        raise QueueError("others have taken over each of our producers; try again")

    async def _commit_with(
        self, producer: Transactions, records: Sequence[NewRecord], times: SavedTimes
    ) -> list[int]:
        """Return the offsets of these records, which are written together with new times.

        Without records the times are written again: by that the caller learns what is owned
        here (`NotificationQueue.owns`).
        """
        said: list[NewRecord] = []
        if times != self._said_times or not records:
            said = self._state_topic.new_records([times_record(self._broker_id, times)])
        written = [*records, *said]
        offsets = await self._commit_all(producer, written)
        self._said_times = times
        self._on_written(written, offsets)
        return offsets

    async def _commit_all(self, producer: Transactions, records: Sequence[NewRecord]) -> list[int]:
        try:
            return await producer.commit(records)
        finally:
            if producer.over:
                self._give_up_producer()

    def _may_write(self, call: _Call) -> bool:
        """Return whether a call is for what is owned here; tell the call if it is not."""
        if call.error is not None:
            return False
        if call.owner is None:
            return True
        if call.owner in self._owned and not (call.doubtful and call.owner in self._doubtful):
            return True
        topic, write_partition = call.owner
        if topic in self._state_topic.state.topics:
            call.error = not_owned(topic, write_partition)
        else:
            call.error = UnknownTopicError(f"topic {topic!r} has been deleted")
        return False

    def _times_with(self, records: Sequence[NewRecord]) -> SavedTimes:
        """Return how far time has come when these records are written: past every entry."""
        published = [each for each in records if each.place != self._state_topic.place]
        running_ms = max((each.running_ms for each in published), default=-1) + 1
        latest_ms = max(running_ms, self._times.running_ms, self._said_times.running_ms)
        return self._times._replace(running_ms=latest_ms)

    # -- claims of earlier lives ------------------------------------------------------------

    async def _adopt(self) -> None:
        """Fence the earlier lives that are seen; what they have claimed is ours from now on."""
        state = self._state_topic.state
        lives = [
            owner
            for owner in state.owners()
            if owner.rpartition(".")[0] == self._name and owner not in self._ids
        ]
        for owner in lives:
            await self._fence_id(owner)
            self._ids[owner] = None
        if lives:
            await self._state_topic.see_all()
            self._claimed |= dict.fromkeys(state.claimed_by(lives))

    # -- the producer and its claims --------------------------------------------------------

    def _give_up_producer(self) -> None:
        """Give up the producer: its id is never used again."""
        if self._producer is not None:
            self._producer.close()
            self._producer = None
            self._loose[self._id] = None
            self._reclaim = True

    async def _ready_producer(self) -> Transactions:
        """Return a producer whose id has claimed all that is owned here."""
        if self._state_topic.error is not None:
            raise self._state_topic.error
        if self._producer is None:
            name = f"{self._name}.{self._runtime.token_hex(8)}"
            self._producer = await self._client.transactions(name)
            self._id = name
            self._ids[name] = None
        for loose in list(self._loose):
            await self._fence_id(loose)
            del self._loose[loose]
        if self._reclaim:
            await self._claim_again(self._producer)
        return self._producer

    async def _claim_again(self, producer: Transactions) -> None:
        """Claim with this id what an earlier one of ours has, and nobody else has taken over."""
        await self._state_topic.see_all()
        self._drop_lost()
        await self._claim(producer, self._claimed)
        self._drop_lost()
        self._ids = {self._id: None}
        self._reclaim = False

    async def _claim(self, producer: Transactions, owners: Iterable[Owner]) -> None:
        """Claim write partitions with our id, and see what became of it.

        Raises:
            QueueError: they may be claimed, or not.
        """
        state = self._state_topic.state
        records = [
            record
            for owner in owners
            if state.claim(*owner).owner != self._id
            for record in state.next_claim(*owner, self._id)
        ]
        if records:
            try:
                await self._commit_all(producer, self._state_topic.new_records(records))
            except (PublishUncertainError, FencedError) as exc:
                raise QueueError(f"cannot claim write partitions: {exc}") from exc
            await self._state_topic.see_all()

    def _drop_lost(self) -> None:
        """Drop what others have claimed, and what we have let go."""
        for owner in [each for each in self._claimed if not self._is_ours(each)]:
            taken_by = self._state_topic.state.claim(*owner).owner
            if taken_by and owner in self._owned:
                topic, write_partition = owner
                log.error("%s/%d was taken over by %r", topic, write_partition, taken_by)
            self._forget([owner])

    def _is_ours(self, owner: Owner) -> bool:
        """Return whether the latest claim is ours, as far as is known."""
        return owner in self._claimed and self._state_topic.state.claim(*owner).owner in self._ids

    def _forget(self, gone: Iterable[Owner]) -> None:
        for owner in gone:
            for owners in (self._claimed, self._owned, self._doubtful):
                owners.pop(owner, None)

    async def _settle(self) -> None:
        if self._loose:
            await self._ready_producer()

    async def _fence_others(self, wanted: Sequence[Owner]) -> None:
        """Fence the owners before us, as far as they are known; each once, for all who ask."""
        async with self._fencing:
            for other in self._unfenced(wanted):
                await self._fence_id(other)

    async def _claim_fenced(self, wanted: Sequence[Owner], *, again: bool) -> bool:
        """Be the latest to claim write partitions, if the owners before us are fenced."""
        producer = await self._ready_producer()
        await self._state_topic.see_all()
        if again:
            self._check_still_ours(wanted)
        if self._unfenced(wanted):
            return False
        self._claimed.update(dict.fromkeys(wanted))
        try:
            await self._claim(producer, wanted)
        except QueueError as exc:
            if not producer.over:
                raise
            log.warning("%s; going on with another producer", exc)
            return False
        return all(self._state_topic.state.claim(*each).owner == self._id for each in wanted)

    async def _release(self, wanted: Sequence[Owner]) -> None:
        """Claim for nobody what is claimed by our producer's id.

        Only that producer writes such a claim, so it cannot come after that of a broker that has
        fenced the id. Once it is written nobody fences us any more before publishing, so then the
        write partition must not be owned here. While it may be written, or not, the producer is
        over, and the next one finds out before it writes anything else.
        """
        state = self._state_topic.state
        for _ in range(ATTEMPTS):
            if not any(owner in self._claimed for owner in wanted):
                return
            producer = await self._ready_producer()
            await self._state_topic.see_all()
            self._drop_lost()
            ours = [owner for owner in wanted if owner in self._claimed]
            records = [record for owner in ours for record in state.next_claim(*owner, "")]
            try:
                if records:
                    await self._commit_all(producer, self._state_topic.new_records(records))
            except FencedError as exc:  # and nothing was written
                log.warning("%s; going on with another producer", exc)
            except MemqError as exc:
                raise QueueError(f"a release may have taken effect, or not: {exc}") from exc
            else:
                self._forget(ours)
                return
        raise QueueError("others have taken over each of our producers; try again")

    def _check_still_ours(self, wanted: Iterable[Owner]) -> None:
        for topic, write_partition in wanted:
            latest = self._state_topic.state.claim(topic, write_partition).owner
            if not latest:
                raise not_owned(topic, write_partition)
            if latest not in self._ids:
                raise FencedError(
                    f"write partition {write_partition} of {topic!r} was taken over by {latest!r}"
                )

    def _unfenced(self, wanted: Iterable[Owner]) -> list[str]:
        """List the others that have claimed these, and are not known to be fenced."""
        owners = dict.fromkeys(self._state_topic.state.claim(*owner).owner for owner in wanted)
        return [
            each for each in owners if each and each not in self._ids and each not in self._fenced
        ]

    async def _fence_id(self, transactional_id: str) -> None:
        """See to it that nobody writes with an id any more, and that what it wrote is decided."""
        if transactional_id in self._fenced:
            return
        (await self._client.transactions(transactional_id)).close()
        self._fenced[transactional_id] = None
        if len(self._fenced) > MAX_FENCED:
            self._fenced.popitem(last=False)


def _tell(calls: Iterable[_Call], offsets: Sequence[int]) -> None:
    """Give each call the offsets of its records."""
    begin = 0
    for call in calls:
        end = begin + len(call.records)
        call.offsets = list(offsets[begin:end])
        begin = end


def _fail(calls: Iterable[_Call], error: MemqError) -> None:
    """Give each call the error, but for those that have another one."""
    for call in calls:
        call.error = call.error or type(error)(str(error))
