"""An object store in memory, as the client library has one, whose answers a test decides."""

import asyncio
import datetime as dt
from types import SimpleNamespace

from obstore.exceptions import AlreadyExistsError, GenericError

from memq.storage.object_store_client import OpenedStore

REFUSED = GenericError("403 - status code: 403, <Code>AccessDenied</Code><Message>no</Message>")
BUSY = GenericError("503 - status code: 503, <Code>SlowDown</Code><Message>slow</Message>")
NO_BUCKET = GenericError("404 - status code: 404, <Code>NoSuchBucket</Code>")
NOT_IMPLEMENTED = GenericError("status code: 501, <Code>NotImplemented</Code>")
PAST_THE_END = GenericError("status code: 416, <Code>InvalidRange</Code>")
HANG = object()
"""An answer that does not come."""


class Store:
    """Answers as S3 does: deletes what is not there, lists in order, `page` keys at a time.

    Attributes:
        objects: content by name.
        asked: kind of each request so far.
        answers: what becomes of the next requests of a kind: an error, `HANG`, or None for nothing.
        cancelled: kinds of the requests that were given up.
        minds: a deletion stops at the first name that is not there, and says so.
        page: keys of one page.
    """

    def __init__(self):
        self.objects: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.answers: dict[str, list] = {}
        self.cancelled: list[str] = []
        self.minds = False
        self.page = 2
        self.ended = 0

    def opened(self, *_, **__):
        """In place of `open_store`."""
        return OpenedStore(self, {"Storage-Class": "x"}, {"a": "b"})

    async def _asked(self, kind):
        self.asked.append(kind)
        answers = self.answers.get(kind)
        answer = answers.pop(0) if answers else None
        try:
            if answer is HANG:
                await asyncio.Event().wait()
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled.append(kind)
            raise
        if answer is not None:
            raise answer

    async def put_async(self, name, content, *, mode, use_multipart, attributes, tags):
        assert (use_multipart, attributes, tags) == (False, {"Storage-Class": "x"}, {"a": "b"})
        await self._asked(f"put {mode}")
        whole = b"".join(bytes(each) for each in content)
        if mode == "create" and name in self.objects:
            raise AlreadyExistsError("412")
        self.objects[name] = whole

    def _held(self, name):
        if name not in self.objects:
            raise FileNotFoundError(name)
        return self.objects[name]

    async def head_async(self, name):
        await self._asked("head")
        return {"size": len(self._held(name))}

    async def get_async(self, name, *, options):
        await self._asked("get")
        whole, (start, end) = self._held(name), options["range"]
        if start >= len(whole):
            raise PAST_THE_END

        async def content():
            await self._asked("bytes")
            return whole[start:end]

        return SimpleNamespace(meta={"size": len(whole)}, bytes_async=content)

    async def list(self, folder, *, offset=None, chunk_size=None):
        prefix = f"{folder}/" if folder else ""
        names = [name for name in sorted(self.objects) if name.startswith(prefix)]
        names = [name for name in names if name > (offset or "")]
        page = min(self.page, chunk_size)
        for first in range(0, max(1, len(names)), page):
            await self._asked("list")
            if names:
                yield [self._meta(name) for name in names[first : first + page]]

    def _meta(self, name):
        time = dt.datetime.now(dt.UTC)
        return {"path": name, "size": len(self.objects.get(name, b"")), "last_modified": time}

    async def delete_async(self, names):
        await self._asked("delete")
        for name in [names] if isinstance(names, str) else names:
            if self.objects.pop(name, None) is None and self.minds:
                raise FileNotFoundError(name)
