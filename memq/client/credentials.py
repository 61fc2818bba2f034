"""The option `credentials = broker` of a storage: brokers hand out credentials for each topic.

A reader asks for them before it reads an object, and again when a quarter of their time is left.
They become options of the storage like those that a user has given. So they are in no plan and no
configuration: each process that reads asks by itself, as whoever it is for the brokers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memq.core.named_values import NamedValues
from memq.core.wire.messages import FetchCredentials
from memq.runtime.renewed import Renewed

if TYPE_CHECKING:
    from collections.abc import Callable

    from memq.reading.log import TopicLog

SHARE = 0.75  # of their time, after which they are renewed
RENEWAL_S = 5.0  # that a renewal may take while others are good
MAX_TOPICS = 1_000  # whose credentials are kept; then all are asked for again

# Options with credentials, by topic and topic id.
BorrowedCredentials = dict[tuple[str, str], Renewed[NamedValues]]


async def with_credentials(
    topic: TopicLog, kept: BorrowedCredentials, clock_s: Callable[[], float]
) -> NamedValues:
    """Return the options with which objects of a topic are read, where brokers are asked.

    Args:
        topic: the topic.
        kept: credentials that its client has, and other topics of it.
        clock_s: monotonic, in seconds.

    Raises:
        ConfigError: the broker hands out none.
        MemqError: as `TopicLog.read`.
    """

    async def ask(left_s: float) -> tuple[NamedValues, float]:
        request = FetchCredentials(topic=topic.topic)
        answer, _ = await topic.read(request, timeout_s=RENEWAL_S if left_s else None)
        own = {name.lower(): value for name, value in topic.storage_options}
        del own["credentials"]
        return NamedValues((answer.options | own).items()), answer.ttl_ms / 1000

    if len(kept) >= MAX_TOPICS:
        kept.clear()
    renewed = kept.setdefault((topic.topic, topic.topic_id), Renewed(clock_s, SHARE))
    return (await renewed.get(ask))[0]
