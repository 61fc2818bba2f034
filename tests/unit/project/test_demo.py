"""What a demo makes of the environment that it is started in."""

import os

from demo.broker import leave_out_settings


def test_settings_of_the_user_are_left_out(monkeypatch):
    """A token, a storage or a profile is for brokers of the user's own; the demo's have none."""
    for name in ("MEMQ_TOKEN", "MEMQ_STORAGE", "MEMQ_PROFILE"):
        monkeypatch.setenv(name, "mine")
    for name in [each for each in os.environ if each.startswith("MEMQ_")]:
        monkeypatch.setenv(name, os.environ[name])  # given back at the end of the test

    leave_out_settings()

    assert not [name for name in os.environ if name.startswith("MEMQ_")]
