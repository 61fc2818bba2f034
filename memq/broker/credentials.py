"""Credentials of one topic, which a broker hands out to those who may read it.

They are those of a session in S3 that ends soon. Its policy names the objects of one topic id, and
its name the principal, so that the cloud's own log says who has read. A session is made for each
principal and topic, and is handed out again for the first half of its time: a thousand tasks of a
job cost one.

Who may not read any more gets none, and keeps what it has until that ends.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from memq.core.access.iam import topic_policy, topics_arn
from memq.core.wire.messages import FetchCredentials, FetchCredentialsAnswer
from memq.errors import ConfigError
from memq.runtime.renewed import Renewed

if TYPE_CHECKING:
    from memq.broker.context import BrokerContext
    from memq.broker.topics import Topics
    from memq.core.access.rules import Access
    from memq.core.governor.topics import Topic
    from memq.storage.sts import NewSession

MAX_SESSIONS = 10_000  # that are kept, about 2 KB each; then all are made again
CALLS = 2  # of STS at a time: of the threads that ask the storage, which it must not take away
SHARE = 0.5  # of a session's time, for which it is handed out


class Lender:
    """Hands them out.

    Args:
        context: of the broker.
        topics: that it knows.

    Raises:
        ConfigError: the options of the storage are refused.
    """

    def __init__(self, context: BrokerContext, topics: Topics) -> None:
        self._context, self._topics = context, topics
        self._sessions: dict[tuple[str, str, str], Renewed[dict[str, str]]] = {}
        self._calls = asyncio.Semaphore(CALLS)
        self._sts: NewSession | None = None
        config, options = context.config, dict(context.config.storage_options)
        self._decrypts = "kms" in str(options).lower()
        if config.credentials_role:
            from memq.storage.sts import open_sts  # noqa: PLC0415 - loads boto3, which is optional

            self._sts = open_sts(config.credentials_role, config.credentials_endpoint, options)

    async def lend(self, request: FetchCredentials, access: Access) -> FetchCredentialsAnswer:
        """Give a client, who may read a topic, credentials for it.

        Raises:
            ConfigError: this broker gives none, or STS refuses.
            UnavailableError: STS does not answer.
            MemqError: there is no such topic here.
        """
        topic = (await self._topics.find(request.topic, request.topic_id)).topic
        if len(self._sessions) >= MAX_SESSIONS:
            self._sessions.clear()
        place = (access.principal, topic.name, topic.topic_id)
        kept = self._sessions.setdefault(place, Renewed(self._context.runtime.mono_s, SHARE))
        options, left_s = await kept.get(lambda _: self._made(access.principal, topic))
        return FetchCredentialsAnswer(options=options, ttl_ms=int(left_s * 1000))

    async def _made(self, principal: str, topic: Topic) -> tuple[dict[str, str], float]:
        context, config = self._context, self._context.config
        if self._sts is None:
            raise ConfigError(
                f"broker {config.broker_id} hands out no credentials: set its option "
                "credentials_role, or leave credentials = broker out of the storage_options"
            )
        base = topics_arn(config.storage, config.cluster_id, config.credentials_role)
        policy = topic_policy(base, topic.name, topic.topic_id, decrypts=self._decrypts)
        name = f"memq-{principal.removeprefix('User:')}"
        duration_s = config.credentials_duration_ms // 1000
        async with self._calls:
            options, ends_s = await asyncio.get_running_loop().run_in_executor(
                context.reads, self._sts, name, policy, duration_s
            )
        return options, ends_s - context.runtime.wall_ms() / 1000
