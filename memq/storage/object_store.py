"""Objects of an object store: S3 and whatever speaks its protocol, GCS, Azure; through obstore.

How a put becomes an object that is whole, durable and written once:

1. The object is put in one request, with `If-None-Match: *` where the store knows that: of many
   writers one wins. Where it does not, a Batch's key is unique, so that all its writers have
   the same bytes. A store has all of an object or nothing; it is durable when the store says so.
2. A key that is taken is a success when the object there has the same bytes: that is what a put
   looks like whose answer was lost, or one that was made twice at once. Other bytes are an error.

obstore's own retries are off: the caller of a put has a deadline, and the rule of when to try
again, or a second time in parallel (`memq.runtime.hedging`). A request that takes longer than its
size explains has stalled, and is given up, so that there is time for another one.

Reads are made of ranges, several at a time, each hedged, and tried a few times, by itself. What a
store sends is counted: an answer that was cut short is no object's end.

Requests are made in a thread of their own, and can be cancelled there
(`memq.storage.object_store_thread`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from urllib.parse import quote

import pyarrow as pa
from obstore.exceptions import AlreadyExistsError, BaseError

from memq.core.units import MIB
from memq.errors import ConfigError, InvalidRequestError, ObjectNotFoundError, StorageError
from memq.runtime.hedging import Hedging, first_success
from memq.runtime.retry import STORAGE_BACKOFF, Retry
from memq.runtime.system import SYSTEM, Runtime
from memq.storage.handler import ObjectInfo, same_bytes, views_of
from memq.storage.keys import LISTINGS, check_key, check_prefix
from memq.storage.metering import count_request
from memq.storage.object_store_client import (
    explain,
    is_directory_bucket,
    is_no_container,
    is_not_implemented,
    is_past_the_end,
    is_refusal,
    open_store,
)
from memq.storage.object_store_thread import Waits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence

    from obstore import GetOptions, ListStream, ObjectMeta

    from memq.storage.handler import Buffer


log = logging.getLogger(__name__)

T = TypeVar("T")

PART_BYTES = 8 * MIB  # about, of one ranged request: S3 sends some 90 MB/s on each connection
PARTS_AT_A_TIME = 8  # of one read
PART_ATTEMPTS = 3  # of each part; readers try the whole again for longer
STALL_S = 5.0  # a request for nothing that takes longer has stalled: S3's p99.9 is below 0.5 s
SLOW_BYTES_S = 2 * MIB  # where all requests together are slower than this, they have stalled
LIST_TIMEOUT_S = 60.0  # of one page, with all its attempts
PAGE_KEYS = 1_000  # S3 gives no more at a time
JOIN_BELOW_BYTES = 32 << 10  # smaller buffers cost less to copy than to hand over one by one

URI_SAFE = "/~!$&'()*+,;=:@"  # what the path of a URI may have as it is


class ObjectStorage:
    """A `StorageHandler` on a bucket or container. Safe to use from many threads at once.

    Args:
        container: its URI, such as `s3://logs`.
        root: prefix of every key, without '/' at its ends.
        options: of the store (`memq.storage.object_store_client`).
        runtime: clocks and chance.

    Attributes:
        requests: how many were made of each kind: "put", "get", "list", "delete"; and the bytes of
            objects that they carried: "put_bytes", "get_bytes".

    Raises:
        ConfigError: an option is unknown or malformed.
    """

    remote = True

    def __init__(
        self,
        container: str,
        root: str = "",
        options: Mapping[str, str] | None = None,
        *,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._container = container
        self._prefix = f"{root}/" if root else ""
        self._runtime = runtime
        self._store, self._attributes, self._tags = open_store(container, options or {})
        # A read that stalls is noticed by its silence; a put is silent until it is done.
        self._reads = open_store(container, options or {}, silence_s=STALL_S).store
        self._is_ordered = not is_directory_bucket(container)
        self._conditional = True
        self._bytes_under_way = 0  # changed on the event loop only
        self._hedging = Hedging()  # of reads, on the event loop; callers hedge their puts
        self._waits = Waits()
        self.requests: Counter[str] = Counter()

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(self.requests.items()))
        return f"<ObjectStorage {self._container}/{self._prefix} [{counts}]>"

    # -- the seam ---------------------------------------------------------------------------

    def put(self, key: str, buffers: Sequence[Buffer], *, timeout_s: float) -> None:
        """Write one object from buffers in order; durable when it returns. It is tried once.

        Raises:
            InvalidRequestError: the key is not valid.
            StorageError: the store refused, did not answer in time, or the key holds other bytes.
        """
        name = self._name(key)
        views = views_of(buffers)
        size_bytes = sum(view.nbytes for view in views)
        with self._errors("write", key):
            try:
                self._waits.until_done(self._put(name, _joined(views), size_bytes), timeout_s)
            except AlreadyExistsError as exc:
                self._accept_retry(key, views, size_bytes, exc)

    def get(self, key: str) -> Buffer:
        """Read the whole object.

        Raises:
            InvalidRequestError: the key is not valid.
            ObjectNotFoundError: there is none.
            StorageError: the store refused, or did not answer.
        """
        name = self._name(key)
        with self._errors("read", key):
            return self._waits.until_done(self._whole(name))

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        """`length` bytes from `start`; fewer where the object ends sooner.

        Raises:
            InvalidRequestError: the key is not valid, or the range is negative.
            ObjectNotFoundError: there is none.
            StorageError: the store refused, or did not answer.
        """
        name = self._name(key)
        if start < 0 or length < 0:
            raise InvalidRequestError(
                f"range of {length} bytes from {start} of {key!r} is negative"
            )
        with self._errors("read", key):
            return self._waits.until_done(self._range(name, start, length))

    def list(self, *prefixes: str) -> Iterator[ObjectInfo]:
        """List the objects whose key starts with a prefix, page by page as the iteration goes.

        The first pages of several prefixes are asked for at once: a request for each, all together.

        Raises:
            InvalidRequestError: no key could start with a prefix.
            StorageError: the store refused, or did not answer; what came before is valid.
        """
        return self._listed([check_prefix(prefix) for prefix in prefixes])

    def delete(self, *keys: str) -> None:
        """Remove objects, durably, in as few requests as the store allows; missing ones are fine.

        Raises:
            InvalidRequestError: a key is not valid; nothing was removed.
            StorageError: the store refused, or did not answer; some may be removed.
        """
        names = [self._name(key) for key in keys]
        if not names:
            return
        shown = keys[0] if len(keys) == 1 else f"{keys[0]}, …"
        with self._errors("delete", shown):
            self._waits.until_done(self._delete(names), STALL_S + LIST_TIMEOUT_S)

    def close(self) -> None:
        """Give up the requests under way, and make no more: they raise `ClosedError`."""
        self._waits.close()

    def uri(self, key: str) -> str:
        """Return the complete URI of a key, such as `s3://logs/a/b`.

        Raises:
            InvalidRequestError: the key is not valid.
        """
        return f"{self._container}/{quote(self._prefix + check_key(key), safe=URI_SAFE)}"

    def check(self) -> None:
        """List one key that may be ours, to see that the store is there and lets us in.

        Raises:
            ConfigError: there is no such bucket, or it does not let us in.
            StorageError: it did not answer, or is busy: that may pass.
        """
        try:
            with self._errors("list", ""):
                self.requests["list"] += 1
                self._waits.until_done(
                    _next_or_none(self._reads.list(f"{self._prefix}00", chunk_size=1)), STALL_S
                )
        except StorageError as exc:
            if exc.__cause__ is not None and is_refusal(exc.__cause__):
                raise ConfigError(
                    f"{exc}. A broker lists, reads, writes and deletes there; see storage and "
                    "storage_options"
                ) from exc
            raise

    # -- requests ---------------------------------------------------------------------------

    async def _put(self, name: str, content: Sequence[Buffer], size_bytes: int) -> None:
        conditional = self._conditional
        try:
            await self._put_once(name, content, size_bytes, conditional=conditional)
        except (BaseError, NotImplementedError) as exc:
            if not (conditional and is_not_implemented(exc)):
                raise
            await self._put_once(name, content, size_bytes, conditional=False)
            self._conditional = False
            log.warning(
                "%s knows no conditional put, and is not asked for one any more: %s",
                self._container,
                explain(exc),
            )

    async def _put_once(
        self, name: str, content: Sequence[Buffer], size_bytes: int, *, conditional: bool
    ) -> None:
        count_request(self.requests, "put")
        count_request(self.requests, "put_bytes", size_bytes)
        async with self._in_time(size_bytes):
            await self._store.put_async(
                name,
                content,
                mode="create" if conditional else "overwrite",
                use_multipart=False,
                attributes=cast("Any", self._attributes),
                tags=self._tags,
            )

    def _accept_retry(
        self, key: str, views: Sequence[memoryview], size_bytes: int, exc: AlreadyExistsError
    ) -> None:
        """Take the object that is there for our own, if it has the same bytes."""
        try:
            found = memoryview(self.get_range(key, 0, size_bytes + 1)).cast("B")
        except ObjectNotFoundError:  # the store calls it a conflict, and has no object yet
            raise StorageError(
                f"cannot write {key!r} in {self._container}: another put of it has not ended"
            ) from exc
        if not same_bytes(lambda start, length: found[start : start + length], len(found), views):
            raise StorageError(
                f"cannot write {key!r} in {self._container}: the key holds other bytes, and an "
                "object is never rewritten"
            ) from exc

    @asynccontextmanager
    async def _in_time(self, size_bytes: int) -> AsyncIterator[None]:
        """Give up a request of so many bytes that has stalled.

        All requests share one way to the store: each may take as long as all that are under way.
        """
        self._bytes_under_way += size_bytes
        try:
            async with asyncio.timeout(STALL_S + self._bytes_under_way / SLOW_BYTES_S):
                yield
        finally:
            self._bytes_under_way -= size_bytes

    async def _whole(self, name: str) -> Buffer:
        first = await self._part(name, 0, PART_BYTES + PART_BYTES // 2)
        if len(first.content) == first.size_bytes:
            return first.content
        return await self._parts(name, 0, first.size_bytes, first)

    async def _range(self, name: str, start: int, length: int) -> Buffer:
        if length > PARTS_AT_A_TIME * PART_BYTES:  # worth a request to know where the object ends
            size_bytes = (await self._part(name, 0, 0)).size_bytes
            length = max(0, min(length, size_bytes - start))
        if len(_cut(start, length)) == 1:
            return (await self._part(name, start, length)).content
        return await self._parts(name, start, length)

    async def _parts(
        self, name: str, start: int, length: int, first: _Part | None = None
    ) -> pa.Buffer:
        """Bytes of an object by several requests, in memory of Arrow's pool.

        Args:
            name: of the object.
            start: first byte.
            length: how many; fewer where the object ends sooner.
            first: what is known already, from `start` on.
        """
        whole = pa.allocate_buffer(length)
        view, slots = memoryview(whole).cast("B"), asyncio.Semaphore(PARTS_AT_A_TIME)

        def put(at: int, part: _Part) -> int:
            end = at + len(part.content)
            view[at - start : end - start] = memoryview(part.content).cast("B")
            return end if end > at else start  # the object ended before

        async def fetch(at: int, size: int) -> int:
            async with slots:
                return put(at, await self._part(name, at, size))

        done = put(start, first) if first is not None else start
        ends = await _together(fetch(*cut) for cut in _cut(done, start + length - done))
        return whole.slice(0, max(ends) - start)

    async def _part(self, name: str, start: int, length: int) -> _Part:
        """Some bytes of an object, tried a few times; what is after its end is left out."""
        failures = 0
        while True:
            try:
                return await self._hedged_part(name, start, length)
            except (BaseError, TimeoutError, StorageError):
                failures += 1
                if failures == PART_ATTEMPTS:
                    raise
            await asyncio.sleep(STORAGE_BACKOFF.full_jitter_s(failures - 1, self._runtime.random))

    async def _hedged_part(self, name: str, start: int, length: int) -> _Part:
        """Some bytes of an object, asked for a second time when the answer takes long."""
        attempts: list[asyncio.Task[_Part]] = []

        def attempt() -> asyncio.Task[_Part]:
            attempts.append(asyncio.create_task(self._try_part(name, start, length)))
            return attempts[-1]

        try:
            clock_s = self._runtime.mono_s
            return await first_success(attempt, self._hedging, length, clock_s)
        finally:
            for each in attempts:
                each.cancel()
            await asyncio.gather(*attempts, return_exceptions=True)

    async def _try_part(self, name: str, start: int, length: int) -> _Part:
        async with self._in_time(length):
            return await self._ask_for_part(name, start, length)

    async def _ask_for_part(self, name: str, start: int, length: int) -> _Part:
        count_request(self.requests, "get")
        if length == 0:
            return _Part(b"", (await self._reads.head_async(name))["size"])
        try:
            asked: GetOptions = {"range": (start, start + length)}
            result = await self._reads.get_async(name, options=asked)
        except BaseError as exc:
            if is_past_the_end(exc):
                return _Part(b"", 0)
            raise
        size_bytes = result.meta["size"]
        content = await result.bytes_async()
        expected = min(start + length, size_bytes) - start
        if len(content) != expected:
            raise StorageError(f"answer cut short: {len(content)} of {expected} bytes of {name!r}")
        count_request(self.requests, "get_bytes", len(content))
        return _Part(content, size_bytes)

    def _listed(self, prefixes: Sequence[str]) -> Iterator[ObjectInfo]:
        for first in range(0, len(prefixes), LISTINGS):
            listings = [self._pages(each) for each in prefixes[first : first + LISTINGS]]
            first_pages = self._waits.until_done(_together(map(_next_or_none, listings)))
            for pages, first_page in zip(listings, first_pages, strict=True):
                page = first_page
                while page is not None:
                    yield from page
                    page = self._waits.until_done(_next_or_none(pages))

    async def _pages(self, prefix: str) -> AsyncIterator[Sequence[ObjectInfo]]:
        """List page by page. Where a request fails, a new listing goes on after the last key.

        A directory bucket (S3 Express One Zone) lists keys in no order: there it starts over, and
        leaves out what was there before.
        """
        folder = (self._prefix + prefix).rpartition("/")[0] or None
        stream: ListStream[Sequence[ObjectMeta]] | None = None
        last: str | None = None
        listed: set[str] = set()
        is_asked = True  # the store, by the next step of the stream
        retry = self._list_retry()
        while True:
            try:
                with self._errors("list", prefix):
                    stream = stream or self._reads.list(folder, offset=last, chunk_size=PAGE_KEYS)
                    self.requests["list"] += is_asked
                    async with asyncio.timeout(2 * STALL_S):
                        page = await _next_or_none(stream)
            except StorageError as exc:
                stream, is_asked, delay_s = None, True, retry.after(exc)
                await asyncio.sleep(delay_s)
                continue
            if not page:
                return
            retry = self._list_retry()
            new = [meta for meta in page if meta["path"] not in listed]
            if self._is_ordered:
                last = page[-1]["path"]
            else:
                listed.update(meta["path"] for meta in new)
            ours = self._prefix + prefix
            yield [_info(meta, self._prefix) for meta in new if meta["path"].startswith(ours)]
            is_asked = len(page) == PAGE_KEYS  # after a shorter one the stream ends by itself

    def _list_retry(self) -> Retry:
        return Retry(LIST_TIMEOUT_S, self._runtime, STORAGE_BACKOFF)

    async def _delete(self, names: Sequence[str]) -> None:
        self.requests["delete"] += 1
        try:
            await self._store.delete_async(names)
        except FileNotFoundError:
            for name in names:  # a store that minds stops at the first: the others are still there
                self.requests["delete"] += 1
                try:
                    await self._store.delete_async(name)
                except FileNotFoundError as exc:
                    if is_no_container(exc):
                        raise

    # -- names and errors -------------------------------------------------------------------

    def _name(self, key: str) -> str:
        return self._prefix + check_key(key)

    @contextmanager
    def _errors(self, doing: str, key: str) -> Iterator[None]:
        where = f"{key!r} in {self._container}" if key else self._container
        try:
            yield
        except (FileNotFoundError, NotImplementedError, BaseError) as exc:
            if is_no_container(exc):
                raise StorageError(
                    f"cannot {doing} {where}: there is no {self._container}; make it, or set "
                    "`storage` to another one"
                ) from exc
            if isinstance(exc, FileNotFoundError):
                raise ObjectNotFoundError(
                    f"no object {where}: retention removed it, or it is lost"
                ) from exc
            error = StorageError(f"cannot {doing} {where}: {explain(exc)}")
            error.refused = is_refusal(exc)
            raise error from exc
        except TimeoutError as exc:
            raise StorageError(f"cannot {doing} {where}: the store did not answer in time") from exc


class _Part(NamedTuple):
    """Some bytes of an object, and the size of the whole of it."""

    content: Buffer
    size_bytes: int


def _cut(start: int, length: int) -> list[tuple[int, int]]:
    """Start and length of about equal parts of a range, none far above `PART_BYTES`."""
    count = max(1, round(length / PART_BYTES))
    cuts = [start + length * number // count for number in range(count + 1)]
    return [(at, end - at) for at, end in pairwise(cuts)]


def _joined(views: Sequence[memoryview]) -> list[Buffer]:
    """Join runs of small buffers into one; the bytes stay the same."""
    joined: list[Buffer] = []
    for small, run in groupby(views, lambda view: view.nbytes < JOIN_BELOW_BYTES):
        if small:
            joined.append(b"".join(run))
        else:
            joined.extend(run)
    return joined


async def _next_or_none(pages: AsyncIterator[T]) -> T | None:
    """Give the next page of a listing; to ask elsewhere than on a loop crashes."""
    return await anext(pages, None)


async def _together(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Give the results of all; when one fails, give the others up and raise its error."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    return [task.result() for task in tasks]


def _info(meta: ObjectMeta, prefix: str) -> ObjectInfo:
    modified_ms = int(meta["last_modified"].timestamp() * 1000)
    return ObjectInfo(meta["path"].removeprefix(prefix), meta["size"], modified_ms)
