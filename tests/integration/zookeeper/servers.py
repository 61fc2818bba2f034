"""Sessions with a real ZooKeeper whose connections can be broken."""

import secrets
import threading

from memq.runtime.system import SYSTEM
from memq.zookeeper import open_zookeeper
from memq.zookeeper.options import ZooKeeperOptions
from tests.harness.services.tcp_faults import TcpFaultProxy


class Service:
    """Sessions with one root of a server, each through a proxy of its own."""

    clock_s = staticmethod(SYSTEM.boot_s)

    def __init__(self, server) -> None:
        self.server = server
        self.root = f"/test-{secrets.token_hex(6)}"
        self.proxies = {}

    async def open(self, *, session_timeout_s=6.0, request_timeout_s=10.0, user=""):
        proxy = TcpFaultProxy(("127.0.0.1", self.server.port))
        proxy.__enter__()
        options = ZooKeeperOptions(
            servers=f"{proxy.address}{self.root}",
            session_timeout_ms=int(session_timeout_s * 1000),
            request_timeout_ms=int(request_timeout_s * 1000),
            user=user,
            password=user and f"password of {user}",
        )
        session = await open_zookeeper(options)
        self.proxies[session] = proxy
        return session

    async def close(self):
        for session, proxy in self.proxies.items():
            proxy.restore()
            await session.close()
            proxy.__exit__(None, None, None)

    def reset(self, session):
        self.proxies[session].reset()
        self.proxies[session].thaw()

    def __getattr__(self, fault):
        """What a proxy can do: `refuse`, `restore`, `freeze` and `thaw`."""
        return lambda session: getattr(self.proxies[session], fault)()

    def lose_answer(self, session):
        self.proxies[session].freeze("to_client")


def kazoo_threads():
    """Threads that kazoo has begun and not ended."""
    names = ("zk_loop", "_thread_worker")
    return [each for each in threading.enumerate() if any(name in each.name for name in names)]
