"""`memq dev`, `memq broker`, and how a broker is reached."""

import json
import os
import shlex
import signal
import socket
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta

import pytest

from memq.cli.main import main
from tests.integration.cli.processes import end, start


@pytest.mark.parametrize(
    ("command", "variables"), [("dev", {}), ("broker", {"MEMQ_TOKEN": "secret"})]
)
def test_what_is_said_to_try_next_works(tmp_path, command, variables):
    """A broker says where it is, and the commands that it says to try do work.

    A token is not shown; it says where the commands take it from.
    """
    known = os.environ | variables
    serving = start(command, "--data-dir", tmp_path, "--port", "0", "--admin-port", "0", env=known)
    try:
        welcome = []
        while not welcome or not welcome[-1].startswith("memq consume"):
            welcome.append(serving.stderr.readline().decode().strip())
        assert f"data    {tmp_path}" in welcome
        asks = "Try next:"
        if variables:
            asks = "Try next, with the token in MEMQ_TOKEN or after --token:"
        assert "secret" not in "".join(welcome)
        for line in welcome[welcome.index(asks) + 1 :]:
            words = shlex.split(line.partition("memq ")[2])
            data = b"one\ntwo\n" if words[0] == "produce" else None
            code, out, err = end(start(*words, env=known), data)
            assert code == 0, err
        assert out == b"one\ntwo\n"
    finally:
        serving.send_signal(signal.SIGINT)
        assert end(serving)[0] == 0


@pytest.mark.parametrize("command", [["topic", "list"], ["consume", "t"]])
def test_an_admin_port_given_as_bootstrap(broker, capsys, command):
    """A client that meets HTTP says in one line what that is and which port it needs."""
    admin = broker.admin.removeprefix("http://")
    assert main([*command, "-b", admin]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "looks like a broker's admin port; use the broker's port" in err
    assert err.count("\n") == 1


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


def logged(err):
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
    found = logged(err)
    messages = [line["message"] for line in found]
    assert f"broker broker-1 is ready on {address}" in messages
    assert messages[-1] == "broker broker-1 stopped"
    (refused,) = [line for line in found if "not a MemQ frame" in line["message"]]
    assert (refused["level"], refused["logger"]) == ("WARNING", "memq.broker.context")
    assert failed[:2] == (1, b"")
    assert [(line["level"], line["logger"]) for line in logged(failed[2])] == [("ERROR", "memq")]


def shown(*arguments, variables, code=0):
    """Rows of `memq broker --check` by option; or what is wrong."""
    found, out, err = end(start("broker", "--check", "-o", "json", *arguments, env=variables))
    assert found == code, err
    return err if code else {row["option"]: row for row in json.loads(out)}


def test_check_shows_what_a_broker_would_have(tmp_path):
    """Each option has its value and source; secrets are hidden, wherever they stand."""
    config = tmp_path / "broker.toml"
    config.write_text(
        'storage = "s3://bucket/memq"\nmemory_bytes = "64MiB"\ntoken = ["ann 7f3a", "9c1d"]\n'
        'zookeeper = "zk:2181"\nqueue = "kafka://ann:77aa01@kafka:9092"\n'
        '[storage_options]\nregion = "eu"\nsecret_access_key = "hunter2"\n'
        '[queue_options]\n"sasl.password" = "hunter3"\n[listeners.inner]\nport = 7000\n'
    )
    variables = os.environ | {"MEMQ_ZONE": "a"}
    rows = shown("--config", config, "--port", "0", variables=variables)
    assert rows["zone"] == {"option": "zone", "value": "a", "source": "MEMQ_ZONE"}
    assert rows["port"]["source"] == "--port"
    assert rows["memory_bytes"] == {
        "option": "memory_bytes",
        "value": "64MiB",
        "source": str(config),
    }
    assert rows["host"]["source"] == "default"
    assert rows["listeners.inner.port"]["value"] == "7000"
    assert rows["token"]["value"] == "***"
    assert rows["storage_options"]["value"] == "region=eu,secret_access_key=***"
    assert rows["queue"]["value"] == "kafka://***@kafka:9092"
    for secret in ("hunter2", "hunter3", "7f3a", "9c1d", "77aa01"):
        assert secret not in json.dumps(rows)
    assert not (tmp_path / "memq-data").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('memory_bytes = "1B"', "memory_bytes = 1B: must be at least 8MiB"),
        ('token_file = "nothing"', "cannot read token_file nothing"),
        ('tls_cert = "nothing"\ntls_key = "nothing"', "nothing"),
    ],
)
def test_check_fails_where_a_start_would(tmp_path, text, message):
    """A wrong value, or a file that is not there, is one line and exit code 1."""
    config = tmp_path / "broker.toml"
    config.write_text(text)
    assert message in shown("--config", config, variables=os.environ, code=1)


def test_sighup_names_what_waits_for_a_restart(tmp_path):
    """Files of tokens are read again; a changed option is named without its value, and a wrong file
    changes nothing.
    """
    config, tokens = tmp_path / "broker.toml", tmp_path / "tokens"
    common = f'data_dir = "{tmp_path}/data"\nport = 0\nadmin_port = 0\ntoken_file = "{tokens}"\n'
    tokens.write_text("first")
    config.write_text(common)
    serving = start("broker", "--config", config, "-o", "json")
    place = json.loads(serving.stdout.readline())

    def reload(text, *expected):
        config.write_text(common + text)
        serving.send_signal(signal.SIGHUP)
        for each in expected:
            while each not in (line := serving.stderr.readline().decode()):
                assert line, "it ended"
        return line

    try:
        tokens.write_text("second")
        reload("", "1 token accepted now", "no option changed")
        asked = start("topic", "list", "-b", place["address"], "--token", "second")
        assert end(asked)[0] == 0
        line = reload('queue_options = "x=hunter2"\nmemory_bytes = "64MiB"', "restart the broker")
        assert "restart the broker for queue_options, memory_bytes" in line
        assert "hunter2" not in line
        reload('memory_bytes = "1B"', "the configuration would stop a start: memory_bytes = 1B")
    finally:
        serving.terminate()
        assert end(serving)[0] == 0


def test_a_stop_tells_load_balancers_first(tmp_path):
    """During drain_delay /ready says 503, and a produce that comes then is acked."""
    serving = start(
        *("broker", "--data-dir", tmp_path, "--port", "0", "--admin-port", "0", "-o", "json"),
        *("--auto-create-topics", "--drain-delay", "8s"),
    )
    place = json.loads(serving.stdout.readline())

    def ready():
        try:
            with urllib.request.urlopen(f"{place['admin']}/ready", timeout=5) as answer:  # noqa: S310
                return answer.status
        except urllib.error.HTTPError as exc:
            return exc.code

    assert ready() == 200
    began_s = time.monotonic()
    serving.terminate()
    while "stops in 8000 ms" not in serving.stderr.readline().decode():
        pass
    assert ready() == 503
    code, out, err = end(start("produce", "t", "-b", place["address"]), b"one\ntwo\n")
    assert code == 0, err
    assert b"acked          2" in out
    assert ready() == 503
    assert serving.poll() is None
    assert end(serving)[0] == 0
    assert time.monotonic() - began_s >= 8
