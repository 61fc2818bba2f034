"""What commands say on stderr, and a clock for those that wait."""

from types import SimpleNamespace

import pytest

from memq.cli import cluster, consume, group


@pytest.fixture
def said(monkeypatch):
    """What is said on stderr, without the name of the program."""
    found = []
    for module in (cluster, consume, group):
        monkeypatch.setattr(
            module, "notice", lambda text: found.append(text.removeprefix("memq: "))
        )
    return found


@pytest.fixture
def clock(monkeypatch):
    """Time passes only where it is slept, or where a test moves it."""
    at = SimpleNamespace(now_s=100.0)

    def sleep(seconds):
        at.now_s += seconds

    for module in (cluster, consume):
        now = SimpleNamespace(monotonic=lambda: at.now_s, sleep=sleep)
        monkeypatch.setattr(module, "time", now)
    return at
