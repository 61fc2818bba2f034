"""Throwaway."""
from __future__ import annotations
import asyncio
from memq.core.governor import governor as g
from memq.core.governor.coordination import Create, Delete, Set, Check
from memq.core.governor.mirror import Mirror
from memq.core.governor.nodes import *
from memq.errors import *

async def govern(session, broker_id, registered_ms, clock_ms, governor):
    while True:
        try:
            e = await session.get(ELECTION)
            await session.transact([Create(GOVERNOR, broker_id.encode(), True), Set(ELECTION, broker_id.encode(), e.version)])
        except (NodeExistsError, VersionConflictError):
            async for n in session.watch(GOVERNOR):
                if n is None: break
            continue
        check = g.Check(ELECTION, e.version + 1)
        ev = asyncio.Event()
        def ch(kind):
            def f(name, node):
                if kind == "b":
                    governor.broker_registered(BROKERS.decode(name, node.data).resources()) if node else governor.broker_gone(name)
                elif kind == "t":
                    if node:
                        t = TOPICS.decode(name, node.data); governor.topic_changed(g.TopicPartitions(name, t.incarnation, t.config.write_partitions))
                    else: governor.topic_deleted(name)
                elif kind == "d":
                    governor.drain_requested(name) if node else governor.drain_withdrawn(name)
                elif kind == "l" and node:
                    governor.loads_reported(name, LOADS.decode(name, node.data).by_partition())
                ev.set()
            return f
        ms = {k: Mirror(session, p, ch(k)) for k, p in (("b", BROKERS.path), ("t", TOPICS.path), ("a", ASSIGNMENTS.path), ("d", DRAINING), ("l", LOADS.path))}
        for m in ms.values(): await m.start()
        snap = g.ClusterSnapshot(
            brokers=[BROKERS.decode(n, x.data).resources() for n, x in ms["b"].nodes.items()],
            topics=[(lambda t: g.TopicPartitions(t.name, t.incarnation, t.config.write_partitions))(TOPICS.decode(n, x.data)) for n, x in ms["t"].nodes.items()],
            assignments={n: g.StoredNode(x.data, x.version) for n, x in ms["a"].nodes.items()},
            draining=[*ms["d"].nodes])
        governor.elected(snap, check, clock_ms(), registered_ms=registered_ms)
        for n, x in ms["l"].nodes.items(): governor.loads_reported(n, LOADS.decode(n, x.data).by_partition())
        while True:
            todo = governor.tick(clock_ms())
            if isinstance(todo, g.Transaction):
                ops = [Check(todo.check.path, todo.check.version)]
                for c in todo.changes:
                    p = ASSIGNMENTS.child(c.topic)
                    ops.append(Create(p, c.data) if c.version < 0 else Delete(p, c.version) if c.data is None else Set(p, c.data, c.version))
                await session.transact(ops)
                governor.written(todo.number, clock_ms())
                continue
            ev.clear()
            try:
                async with asyncio.timeout(1): await ev.wait()
            except TimeoutError: pass
