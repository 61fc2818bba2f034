"""Feature levels: new data begins at the highest; nothing goes on at one that it does not know."""

import json

import pytest

from memq import AsyncAdminClient
from memq.broker import level_file
from memq.core.features import MAX_LEVEL, MIN_LEVEL
from memq.core.wire import messages as m
from memq.errors import ConfigError, CorruptDataError, InvalidRequestError
from tests.integration.broker.support import broker, client


async def test_a_new_data_directory_begins_at_the_highest_level(tmp_path):
    """And stays there; clients are told what the broker knows."""
    for _ in range(2):
        async with broker(tmp_path) as running, client(running) as c:
            assert running.context.level == MAX_LEVEL
            answer = c.connection._handshake.result()
            assert (answer.min_level, answer.max_level) == (MIN_LEVEL, MAX_LEVEL)
    assert json.loads((tmp_path / "features.json").read_text()) == {"level": MAX_LEVEL}


async def test_data_of_an_older_version_is_raised_only_by_finalize(tmp_path):
    """Data without a level is at 1 over restarts, until finalize raises it, for good."""
    async with broker(tmp_path):
        pass
    (tmp_path / "features.json").unlink()
    for _ in range(2):
        async with broker(tmp_path) as running:
            assert running.context.level == 1
    async with broker(tmp_path) as running, AsyncAdminClient(running.address) as admin:
        (status,) = (await admin.status()).brokers
        assert (status.min_level, status.max_level, status.level) == (1, MAX_LEVEL, 1)
        for wrong in (0, -1, MAX_LEVEL + 1):
            with pytest.raises(InvalidRequestError, match=f"feature level {wrong}: 1 is active"):
                await admin.finalize_upgrade(wrong)
        for _ in range(2):  # the second time it changes nothing
            await admin.finalize_upgrade(MAX_LEVEL)
        with pytest.raises(InvalidRequestError, match="never lowered"):
            await admin.finalize_upgrade(1)
        assert running.context.level == MAX_LEVEL
    async with broker(tmp_path) as running:
        assert running.context.level == MAX_LEVEL


@pytest.mark.parametrize("level", [MIN_LEVEL - 1, MAX_LEVEL + 1])
async def test_a_level_that_is_not_known_keeps_a_broker_from_starting(tmp_path, level):
    """It says which level, what it knows and the way out, and touches nothing."""
    async with broker(tmp_path):
        pass
    (tmp_path / "features.json").write_text(json.dumps({"level": level}))
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=f"feature level {level}, and memq .* knows 1 to 2: run"):
        async with broker(tmp_path):
            pass
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("content", ["", "{}", '{"level": "2"}', "[2]"])
def test_a_damaged_level_is_named(tmp_path, content):
    """A file that holds no level is never taken for one."""
    (tmp_path / "features.json").write_text(content)
    with pytest.raises(CorruptDataError, match=r"features\.json"):
        level_file.read_level(tmp_path)


async def test_only_who_may_alter_the_cluster_finalizes(tmp_path):
    """Finalize needs `alter` on the cluster."""
    need = m.REQUESTS[70].needs
    assert [(each.operation, each.type) for each in need] == [("alter", "cluster")]
