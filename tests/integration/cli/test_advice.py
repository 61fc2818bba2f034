"""What messages of commands advise is done, word by word, and helps."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from memq import AdminClient
from memq.errors import MemqError
from memq.testing.broker import BrokerProcess
from tests.advice import follows
from tests.integration.cli.processes import TIMEOUT_S, end, start


def advised(said):
    """The arguments of the commands that a message shows."""
    found = [shlex.split(command)[1:] for command in re.findall(r"`(memq [^`]+)`", said)]
    assert found, said
    return found


def broker_folder(broker):
    """Its data directory."""
    return Path(broker._options["data_dir"])


@pytest.fixture
def free_port():
    """A port on which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@follows("no topic … here; …", "create it with `memq topic create …`")
def test_an_unknown_topic_is_created(memq):
    """The command that the error shows makes the topic, and what failed works."""
    wanted = ["consume", "advised", "--exit-at-end"]
    (command,) = advised(memq(*wanted, code=1))
    memq(*command)
    memq(*wanted)


def test_a_name_that_no_topic_can_have_is_not_to_be_created(memq):
    """What is wrong with the name is said instead."""
    said = memq("topic", "describe", "no name", code=1)
    assert "create it" not in said
    assert "use 1 to 200 of letters" in said


@follows("no broker at …: …; start one with `memq dev`, or name another with --bootstrap")
def test_a_broker_is_started_or_another_named(memq, broker, free_port, tmp_path, monkeypatch):
    """Both ways out lead out."""
    monkeypatch.setenv("MEMQ_BOOTSTRAP", f"127.0.0.1:{free_port}")
    (command,) = advised(memq("topic", "list", code=1))
    memq("topic", "list", "--bootstrap", broker.address)
    monkeypatch.setenv("MEMQ_PORT", str(free_port))
    monkeypatch.setenv("MEMQ_ADMIN_PORT", "0")
    monkeypatch.setenv("MEMQ_DATA_DIR", str(tmp_path / "data"))
    process = start(*command, "-o", "json")
    try:
        process.stdout.readline()
        memq("topic", "list")
    finally:
        process.terminate()
        end(process)


@follows("…. What comes before was removed", "retained are …")
def test_a_range_is_read_as_the_error_says(memq, topic, lines):
    """First and last of what is retained, with one more for the end, are a range."""
    for _ in range(2):
        memq("produce", topic, "--input", lines)
    said = memq("consume", topic, "--range", "0:1-9", code=1)
    first, last = map(int, re.search(r"retained are offsets (\d+) to (\d+)", said).groups())
    assert memq("consume", topic, "--range", f"0:{first}-{last + 1}").count(b"\n") == 2_000


@follows("use --to-offset, --to-earliest or --to-latest", "give one of --to-earliest,")
@pytest.mark.parametrize("option", [["--to-offset", 0], ["--to-earliest"], ["--to-latest"]])
def test_a_group_without_offsets_goes_where_it_is_told(memq, topic, lines, option):
    """A shift needs a place; each of the options that the error names gives one."""
    memq("produce", topic, "--input", lines)
    command = ["group", "reset-offsets", "new", topic]
    assert option[0] in memq(*command, "--shift-by", 1, code=1)
    assert option[0] in memq(*command, code=2)
    memq(*command, *option)


@follows("nothing was changed; add --execute to do it")
def test_a_reset_is_done_with_execute(memq, broker, topic):
    """Shown first; then done."""
    command = ["group", "reset-offsets", "later", topic, "--to-earliest"]
    process = start(*command, "-b", broker.address)
    code, _, said = end(process)
    assert (code, "add --execute" in said) == (0, True)
    memq(*command, "--execute")
    assert b"later" in memq("group", "list", "--topic", topic)


@follows("no group …; see `memq group list`")
def test_groups_are_listed(memq, topic):
    """A mistyped group is found in the list."""
    memq("group", "reset-offsets", "reports", topic, "--to-earliest", "--execute")
    (command,) = advised(memq("group", "describe", "report", code=1))
    assert b"reports" in memq(*command)


@follows("nothing to change; give an option such as --retention 30d")
def test_a_topic_is_altered(memq, topic):
    """The option is taken as it stands in the message."""
    said = memq("topic", "alter", topic, code=2)
    option = re.search(r"such as (--\S+ \S+)", said)[1].split()
    memq("topic", "alter", topic, *option)


@follows("let them with `memq topic alter … --audited`")
def test_a_topic_is_audited(memq, topic):
    """The command of the message turns reports on, and the audit can be asked."""
    (command,) = advised(memq("audit", topic, code=1))
    memq(*command)
    assert b"clean" in memq("audit", topic)


@follows("let it start first")
def test_a_window_has_its_start_first(memq, topic):
    """A window the wrong way round is turned."""
    memq("topic", "alter", topic, "--audited")
    assert "let it start first" in memq("audit", topic, "--from", "1h", "--to", "2h", code=1)
    memq("audit", topic, "--from", "2h", "--to", "1h")


@follows("(`memq group delete GROUP TOPIC`) and set its offsets (`memq group reset-offsets`)")
def test_damaged_offsets_are_deleted_and_set(memq, broker, topic):
    """A group whose file is damaged is deleted without being read, and begins where it is told."""
    memq("group", "reset-offsets", "hurt", topic, "--to-earliest", "--execute")
    (file,) = broker_folder(broker).glob(f"queue/topics/{topic}*/groups/hurt*")
    file.write_bytes(b"garbage")
    said = memq("consume", topic, "--group", "hurt", "--exit-at-end", code=1)
    delete, reset = advised(said)
    assert delete[-2:] == ["GROUP", "TOPIC"]
    memq(*delete[:-2], "hurt", topic, "--yes")
    memq(*reset, "hurt", topic, "--to-earliest", "--execute")
    memq("consume", topic, "--group", "hurt", "--exit-at-end")


@follows("otherwise seek past this offset to go on (memq group reset-offsets --to-offset …)")
def test_a_group_goes_on_after_a_lost_batch(memq, broker, topic, lines):
    """The offset of the message is the next one, and the rest is read."""
    for _ in range(2):
        memq("produce", topic, "--input", lines)
    [first] = json.loads(memq("batch", "list", topic, "--range", "0:0-1", "-o", "json"))
    Path(unquote(urlsplit(first["uri"]).path)).unlink()
    memq("group", "reset-offsets", "rest", topic, "--to-earliest", "--execute")
    said = memq("consume", topic, "--group", "rest", "--exit-at-end", code=1)
    options = re.search(r"reset-offsets (--to-offset \d+)", said)[1].split()
    memq("group", "reset-offsets", "rest", topic, *options, "--execute")
    assert memq("consume", topic, "--group", "rest", "--exit-at-end").count(b"\n") == 1_000


@follows("…: …; set another port", "…: …; set another admin_port")
@pytest.mark.parametrize("option", ["port", "admin_port"])
def test_another_port_is_set(broker, option, tmp_path):
    """A port that is taken is an error; with another one the broker starts."""
    taken = (broker.address if option == "port" else broker.admin).rpartition(":")[2]
    with pytest.raises(MemqError, match=f"set another {option}"):
        BrokerProcess(tmp_path, **{option: taken})
    BrokerProcess(tmp_path, **{option: 0}).close()


@follows("… is in use by process …; stop that one, or use another folder")
def test_another_folder_is_used_or_the_process_stopped(tmp_path):
    """Two brokers cannot share a data directory, but can follow each other in one."""
    with BrokerProcess(tmp_path / "one") as first:
        with pytest.raises(MemqError, match=f"in use by process {first.pid}; stop that one"):
            BrokerProcess(tmp_path / "one")
        BrokerProcess(tmp_path / "two").close()
        first.terminate()
        BrokerProcess(tmp_path / "one").close()


@follows("set `token` (--token or MEMQ_TOKEN for commands)")
def test_a_token_is_given(memq, tmp_path, monkeypatch):
    """By the option or the variable; a wrong one is as none."""
    with BrokerProcess(tmp_path, token="secret") as guarded:
        monkeypatch.setenv("MEMQ_BOOTSTRAP", guarded.address)
        assert "--token or MEMQ_TOKEN" in memq("topic", "list", code=1)
        assert "--token or MEMQ_TOKEN" in memq("topic", "list", "--token", "wrong", code=1)
        memq("topic", "list", "--token", "secret")
        monkeypatch.setenv("MEMQ_TOKEN", "secret")
        memq("topic", "list")


@follows(
    "rebuild it from the objects with `…`",
    "… would be done; nothing has changed. Add --execute",
    "have no offsets: set them with `memq group reset-offsets` before they start",
)
def test_a_lost_queue_is_rebuilt_as_the_broker_says(memq, tmp_path, lines, monkeypatch):
    """The command of the refusal, then the same with --execute; the groups' offsets after it."""
    data = tmp_path / "data"
    with BrokerProcess(data) as running:
        monkeypatch.setenv("MEMQ_BOOTSTRAP", running.address)
        memq("topic", "create", "t", "--batch-age", "20ms")
        memq("produce", "t", "--input", lines)
        running.terminate()
    shutil.rmtree(data / "queue" / "topics")
    with pytest.raises(MemqError) as refused:
        BrokerProcess(data)
    (command,) = advised(str(refused.value))
    said = end(start(*command))[2]
    assert "Add --execute" in said
    said = end(start(*command, "--execute"))[2]
    reset = advised(said)[0]
    with BrokerProcess(data) as running:
        monkeypatch.setenv("MEMQ_BOOTSTRAP", running.address)
        memq(*reset, "reports", "t", "--to-earliest", "--execute")
        assert memq("consume", "t", "--group", "reports", "--exit-at-end").count(b"\n") == 1_000


@follows("use `memq topic create --schema FILE`", "write a table [topics.NAME] for each, with its")
def test_a_configuration_names_topics_as_tables(tmp_path):
    """One table for each topic, and no schema in it."""
    file = tmp_path / "broker.toml"
    for text, advice in (
        ('topics = "clicks"', "write a table [topics.NAME] for each"),
        ('[topics.clicks]\nschema = "id:int64"', "memq topic create --schema FILE"),
    ):
        file.write_text(text)
        done = subprocess.run(
            [sys.executable, "-m", "memq", "broker", "--config", file],
            capture_output=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        assert (done.returncode, advice in done.stderr.decode()) == (1, True)
    file.write_text('[topics.clicks]\nretention = "2d"')
    with (
        BrokerProcess(tmp_path / "data", config=str(file)) as running,
        AdminClient(running.address) as admin,
    ):
        assert admin.describe_topic("clicks").config.retention_ms == 2 * 86_400_000
