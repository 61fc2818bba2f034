"""`memq dev`, `memq broker`, and how a broker is reached."""

from __future__ import annotations

import json
import os
import shlex
import signal

from memq.cli.main import main
from memq.testing.broker import BrokerProcess
from tests.integration.cli.processes import end, start


def test_dev(tmp_path):
    """`memq dev` says where it is, and the commands that it says to try do work."""
    serving = start("dev", "--data-dir", tmp_path, "--port", "0", "--admin-port", "0")
    try:
        welcome = []
        while not welcome or not welcome[-1].startswith("memq consume"):
            welcome.append(serving.stderr.readline().decode().strip())
        assert f"data    {tmp_path}" in welcome
        produce, consume = (shlex.split(line.partition("memq ")[2]) for line in welcome[-2:])

        assert end(start(*produce), b"one\ntwo\n")[0] == 0
        assert end(start(*consume)) == (0, b"one\ntwo\n", "")
    finally:
        serving.send_signal(signal.SIGINT)
        assert end(serving)[0] == 0


def test_settings(tmp_path):
    """A flag wins over a variable, a variable over the file, the file over the default."""
    config = tmp_path / "broker.toml"
    config.write_text(
        f'data_dir = "{tmp_path}/data"\nbroker_id = "file"\ncluster_id = "file"\nhost = "file"\n'
        'port = 0\nadmin_port = 0\n[topics.made]\nbatch_age = "3s"\n'
    )
    variables = os.environ | {"MEMQ_CLUSTER_ID": "variable", "MEMQ_HOST": "variable"}
    serving = start(
        "broker", "--config", config, "--host", "127.0.0.1", "-o", "json", env=variables
    )
    place = json.loads(serving.stdout.readline())
    try:
        assert place["data_dir"] == f"{tmp_path}/data"
        assert place["pid"] == serving.pid
        assert place["admin"].startswith("http://127.0.0.1:")
        read = start("topic", "list", "-o", "json", "-b", place["address"])
        assert '"batch_age_ms": 3000' in end(read)[1].decode()
    finally:
        serving.terminate()
        assert end(serving)[0] == 0


def test_port_that_is_taken(broker, tmp_path):
    """A broker that cannot start says why in one line."""
    port = broker.address.rpartition(":")[2]

    code, out, err = end(start("dev", "--data-dir", tmp_path, "--port", port))

    assert (code, out) == (1, b"")
    assert err.startswith(f"memq: error: cannot listen on 127.0.0.1:{port}")
    assert "Traceback" not in err


def test_token(tmp_path, monkeypatch, capsys):
    """A broker that asks for a token is reached with it, from a flag or a variable."""
    with BrokerProcess(tmp_path, token="secret") as broker:
        assert main(["topic", "list", "-b", broker.address]) == 1
        assert "memq: error:" in capsys.readouterr().err
        assert main(["topic", "list", "-b", broker.address, "--token", "secret"]) == 0
        monkeypatch.setenv("MEMQ_TOKEN", "secret")
        assert main(["topic", "list", "-b", broker.address]) == 0


def test_no_broker(capsys):
    """Where nobody listens the error comes soon and says what to do."""
    assert main(["topic", "list", "-b", "127.0.0.1:1"]) == 1

    assert "start one with `memq dev`" in capsys.readouterr().err
