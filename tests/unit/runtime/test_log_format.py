"""A log line as JSON, and the clocks of a machine."""

import json
import logging
import sys
import threading
import warnings

import pytest

from memq.runtime.log_format import MAX_CHARACTERS, JsonFormatter, configure, is_json


@pytest.fixture
def restored():
    """Logging and hooks are as they were afterwards."""
    root = logging.getLogger()
    before = root.handlers[:], root.level, sys.excepthook, threading.excepthook
    yield
    for handler in root.handlers[:]:
        root.removeHandler(handler)
    for handler in before[0]:
        root.addHandler(handler)
    root.setLevel(before[1])
    sys.excepthook, threading.excepthook = before[2:]
    logging.captureWarnings(capture=False)


def line(message, *arguments, **fields):
    """A record as JSON."""
    made = logging.LogRecord("memq.x", logging.WARNING, "f", 1, message, arguments, None)
    made.created = 1_750_000_000.0625
    for name, value in fields.items():
        setattr(made, name, value)
    text = JsonFormatter().format(made)
    assert text.isascii()
    assert "\n" not in text
    return json.loads(text)


def test_a_record_is_an_object():
    """Its time is UTC with milliseconds; a traceback is there only where there is an error."""
    assert line("%s broke\n", "ä") == {
        "time": "2025-06-15T15:06:40.062Z",
        "level": "WARNING",
        "logger": "memq.x",
        "message": "ä broke\n",
    }
    try:
        int("bad")
    except ValueError:
        found = line("x", exc_info=sys.exc_info())
    assert found["exception"].startswith("Traceback")
    assert found["exception"].endswith("ValueError: invalid literal for int() with base 10: 'bad'")


def test_a_text_that_is_too_long_lacks_its_middle():
    """Both ends are there, and how much is left out."""
    half = MAX_CHARACTERS // 2
    found = line("%s", "a" * half + "m" * 5_000 + "b" * half)["message"]
    assert found == f"{'a' * half} … (5000 characters left out) … {'b' * half}"


def test_all_that_a_process_says_is_json(restored, capsys):
    """Warnings and what nobody expected as well, in any thread; below the level nothing is said."""
    configure("json", "info")
    assert is_json()
    logging.getLogger("memq.y").debug("no")
    logging.getLogger("memq.y").info("yes")
    error = ValueError("bad")
    sys.excepthook(ValueError, error, None)
    threading.excepthook(threading.ExceptHookArgs((ValueError, error, None, None)))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = logging._showwarning
        warnings.warn("old", stacklevel=1)
    found = [json.loads(each) for each in capsys.readouterr().err.splitlines()]
    assert [each["level"] for each in found] == ["INFO", "CRITICAL", "CRITICAL", "WARNING"]
    assert found[1]["message"] == "unexpected error, stopping: bad"
    assert "ValueError: bad" in found[1]["exception"]
    configure("text", "WARNING")
    logging.getLogger("memq.y").info("no")
    logging.getLogger("memq.y").warning("yes")
    assert capsys.readouterr().err.endswith("WARNING memq.y: yes\n")
    assert (is_json(), sys.excepthook) == (False, sys.__excepthook__)
