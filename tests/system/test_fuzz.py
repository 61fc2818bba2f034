"""Hostile frames against a live broker; `make fuzz` sends more."""

from tests.system import fuzz

FRAMES = 5_000


async def test_broker_withstands_hostile_frames_and_serves_others(tmp_path) -> None:
    """Whatever is sent to it, the broker lives, answers, keeps to its memory, and serves others."""
    report = await fuzz.run(FRAMES, "fixed", tmp_path)
    assert report.violations == []
    assert report.outcome.kinds.total() >= FRAMES
    assert report.outcome.answers > FRAMES / 5
    assert report.acked > 0
    assert report.objects > 0


async def test_memory_above_the_cap_is_reported(tmp_path, monkeypatch) -> None:
    """The cap is compared with what the process really had."""
    monkeypatch.setattr(fuzz, "BASE_BYTES", 0)
    report = await fuzz.run(200, "fixed", tmp_path)
    assert ["memory rose to" in text for text in report.violations] == [True]


async def test_broker_that_dies_is_reported(tmp_path, monkeypatch) -> None:
    """A broker that ended in any way but the one that it was told is a finding."""

    async def kill(process, frames, seed, report):
        process.kill()

    monkeypatch.setattr(fuzz, "_attack_while_good", kill)
    report = await fuzz.run(200, "fixed", tmp_path)
    assert any("ended with" in text for text in report.violations)
