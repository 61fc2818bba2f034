"""What commands log, as JSON: every line on stderr is an object that programs can read."""

from __future__ import annotations

import json
import signal
import socket
from datetime import UTC, datetime, timedelta

from tests.integration.cli.processes import end, start


def lines(err):
    """The objects on stderr; each has what is promised, and its time is about now."""
    found = [json.loads(line) for line in err.splitlines()]
    for line in found:
        assert {"time", "level", "logger", "message"} <= line.keys()
        assert line["level"] in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
        assert line["time"].endswith("Z")
        age = datetime.now(UTC) - datetime.fromisoformat(line["time"])
        assert timedelta(0) < age < timedelta(minutes=5)
    return found


def test_every_line_is_an_object(tmp_path):
    """From its start to its end a broker logs objects only; the welcome for people is left out. A
    command that fails says why in one object.
    """
    flags = ("--data-dir", tmp_path, "--port", "0", "--admin-port", "0", "-o", "json")
    serving = start("broker", *flags, "--log-format", "json", "--log-level", "debug")
    try:
        address = json.loads(serving.stdout.readline())["address"]
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as hostile:
            hostile.sendall(b"\x00\xff\n")
            while hostile.recv(100):
                pass
            command = ("topic", "describe", "nosuch", "-b", address, "--log-format", "json")
        failed = end(start(*command))
    finally:
        serving.send_signal(signal.SIGTERM)
        code, _, err = end(serving)
    assert code == 0
    found = lines(err)
    messages = [line["message"] for line in found]
    assert f"broker broker-1 is ready on {address}" in messages
    assert messages[-1] == "broker broker-1 stopped"
    (refused,) = [line for line in found if "not a MemQ frame" in line["message"]]
    assert (refused["level"], refused["logger"]) == ("WARNING", "memq.broker.context")
    assert failed[:2] == (1, b"")
    assert [(line["level"], line["logger"]) for line in lines(failed[2])] == [("ERROR", "memq")]
