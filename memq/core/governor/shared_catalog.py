"""Throwaway."""

from __future__ import annotations
import msgspec
from typing import TYPE_CHECKING
from memq.core.governor.coordination import Create, Delete
from memq.core.governor.nodes import DOOMED, TOPICS, DoomedNode
from memq.errors import NodeExistsError, TopicExistsError, NoNodeError


class SharedCatalog:
    def __init__(self, session, broker_id):
        self._s, self._id = session, broker_id

    async def get(self, name):
        node = await self._s.get(TOPICS.child(name))
        return TOPICS.decode(name, node.data), node.version

    async def announce(self, topic):
        d = DoomedNode(topic=msgspec.structs.replace(topic, schemas={}), by=self._id)
        await self._s.create(DOOMED.child(topic.queue_topic), DOOMED.encode(d))

    async def save_new(self, topic):
        try:
            await self._s.transact(
                [
                    Create(TOPICS.child(topic.name), TOPICS.encode(topic)),
                    Delete(DOOMED.child(topic.queue_topic), 0),
                ]
            )
        except NodeExistsError as exc:
            raise TopicExistsError(f"{topic.name} exists") from exc

    async def alter(self, topic, version):
        await self._s.set(TOPICS.child(topic.name), TOPICS.encode(topic), version)

    async def delete(self, topic):
        node = await self._s.get(TOPICS.child(topic.name))
        d = DoomedNode(topic=msgspec.structs.replace(topic, schemas={}), by="")
        await self._s.transact(
            [
                Delete(TOPICS.child(topic.name), node.version),
                Create(DOOMED.child(topic.queue_topic), DOOMED.encode(d)),
            ]
        )

    async def doomed(self):
        return [
            DOOMED.decode(n, (await self._s.get(DOOMED.child(n))).data)
            for n in await self._s.children(DOOMED.path)
        ]

    async def claim_removal(self, topic):
        p = DOOMED.child(topic.queue_topic)
        node = await self._s.get(p)
        await self._s.set(
            p,
            DOOMED.encode(DoomedNode(topic=msgspec.structs.replace(topic, schemas={}), by="")),
            node.version,
        )

    async def forget(self, topic):
        p = DOOMED.child(topic.queue_topic)
        try:
            node = await self._s.get(p)
            await self._s.delete(p, node.version)
        except NoNodeError:
            pass
