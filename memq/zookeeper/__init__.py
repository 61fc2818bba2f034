"""Sessions with ZooKeeper, and what brokers of a cluster do there.

kazoo is optional, and loaded when a session is opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memq.errors import ConfigError
from memq.runtime.system import SYSTEM, Runtime

if TYPE_CHECKING:
    from memq.core.governor.coordination import Coordination
    from memq.zookeeper.options import ZooKeeperOptions


async def open_zookeeper(options: ZooKeeperOptions, runtime: Runtime = SYSTEM) -> Coordination:
    """Open a session with a ZooKeeper.

    Args:
        options: where it is, and who we are.
        runtime: its clock.

    Raises:
        ConfigError: kazoo is not installed, or a certificate cannot be used.
        UnavailableError: no server answers within the request timeout.
        UnauthorizedError: we may not make the root.
    """
    try:
        from memq.zookeeper.kazoo_link import open_session  # noqa: PLC0415 - optional
    except ImportError as exc:
        raise ConfigError(f"ZooKeeper needs kazoo: pip install 'memq[zookeeper]' ({exc})") from exc
    return await open_session(options, runtime)
