"""Time that passes at once, and failures of the contract explained as those of a test module."""

import asyncio

import pytest

pytest.register_assert_rewrite("tests.contracts.coordination")


@pytest.fixture
async def virtual_time(monkeypatch):
    """The loop of the test does not sleep: where it would, its time goes on."""
    loop = asyncio.get_running_loop()
    select, now_s = loop._selector.select, loop.time()

    def look(timeout=None):
        nonlocal now_s
        ready = select(0)
        if not ready:
            assert timeout is not None, "nothing will ever happen any more"
            now_s += max(0.0, timeout)
        return ready

    monkeypatch.setattr(loop, "time", lambda: now_s)
    monkeypatch.setattr(loop._selector, "select", look)
