"""What messages of commands advise is done, word by word, and helps."""

from __future__ import annotations

import asyncio
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
from memq.core.notification.embedded import EmbeddedQueue
from memq.errors import MemqError
from memq.testing.broker import BrokerProcess
from tests.advice import follows
from tests.integration.cli.processes import TIMEOUT_S, broker_folder, end, start


def advised(said):
    """The arguments of the commands that a message shows."""
    found = [shlex.split(command)[1:] for command in re.findall(r"`(memq [^`]+)`", said)]
    assert found, said
    return found


@pytest.fixture
def free_port():
    """A port on which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@follows("create it with `memq topic create …`")
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
    assert b"later" in memq("group", "list", topic)


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


@follows("`memq group reset-offsets GROUP … --partition … --to-offset … --execute`")
def test_a_group_goes_on_after_a_lost_batch(memq, broker, topic, lines):
    """The offset of the message is the next one, and the rest is read."""
    for _ in range(2):
        memq("produce", topic, "--input", lines)
    [first] = json.loads(memq("batch", "list", topic, "--range", "0:0-1", "-o", "json"))
    Path(unquote(urlsplit(first["uri"]).path)).unlink()
    memq("group", "reset-offsets", "rest", topic, "--to-earliest", "--execute")
    said = memq("consume", topic, "--group", "rest", "--exit-at-end", code=1)
    (command,) = advised(said)
    memq(*["rest" if word == "GROUP" else word for word in command])
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


@follows("for others, use a higher epoch (memq produce --epoch)")
def test_other_lines_under_the_same_name_need_a_higher_epoch(memq, topic, tmp_path):
    """A job that is run again with other lines is refused; with the next epoch they are stored."""
    command = ["produce", topic, "--producer-id", "job", "--timestamp", "2025-06-30T12:00:00Z"]
    for name, line in (("first", b"one\n"), ("second", b"two\n")):
        (tmp_path / name).write_bytes(line)
    memq(*command, "--input", tmp_path / "first")
    said = memq(*command, "--input", tmp_path / "second", code=1)
    assert "use a higher epoch (memq produce --epoch)" in said
    memq(*command, "--input", tmp_path / "second", "--epoch", 1)
    assert memq("consume", topic, "--from-beginning", "--exit-at-end") == b"one\ntwo\n"


@follows(
    "Seek there, or set on_out_of_range to earliest or latest (memq consume --on-out-of-range)"
)
@pytest.mark.parametrize(("where", "lines"), [("earliest", 1), ("latest", 0)])
def test_a_reader_that_retention_overtook_goes_on(memq, tmp_path, monkeypatch, where, lines):
    """What the group had not read is gone; it goes on with what is left, or with what comes."""
    data = tmp_path / "data"
    (tmp_path / "line").write_bytes(b"line\n")
    with BrokerProcess(data) as broker:
        monkeypatch.setenv("MEMQ_BOOTSTRAP", broker.address)
        memq("topic", "create", "t", "--batch-age", "20ms", "--no-audited")
        memq("group", "reset-offsets", "slow", "t", "--to-earliest", "--execute")
        for _ in range(2):
            memq("produce", "t", "--input", tmp_path / "line")
        with AdminClient(broker.address) as admin:
            life = admin.describe_topic("t").incarnation
        broker.terminate()
        asyncio.run(forget_first(data / "queue", f"t.{life}"))
        broker.restart()
        read = ["consume", "t", "--group", "slow", "--exit-at-end"]
        said = memq(*read, code=1)
        assert "offset 0 of t/0 is not retained; retained is only offset 1" in said
        option = re.search(r"memq consume (--on-out-of-range)", said)[1]
        assert memq(*read, option, where).count(b"\n") == lines


async def forget_first(folder, topic):
    """What retention does."""
    queue = EmbeddedQueue(folder)
    await queue.truncate(topic, 0, 1)
    await queue.close()


@follows("give --max-batches, or leave out --group", "--range says all; leave out --group,")
def test_options_that_exclude_each_other_are_left_out(memq, topic, lines):
    """Each way out of a wrong combination is a command that reads."""
    memq("produce", topic, "--input", lines)
    read = ["consume", topic, "--from-beginning"]
    assert "--max-batches" in memq(*read, "--group", "g", "--max-messages", 1, code=2)
    assert memq(*read, "--group", "g", "--max-batches", 1).count(b"\n") == 1_000
    assert memq(*read, "--max-messages", 1).count(b"\n") == 1
    assert "leave out" in memq(*read, "--range", "0:0-1", code=2)
    assert memq("consume", topic, "--range", "0:0-1").count(b"\n") == 1_000


@follows(
    "; leave out --key and --header",
    "to send each line as it is, use --format lines",
)
def test_rows_are_given_in_their_formats(memq, topic, tmp_path):
    """A typed topic takes JSON and CSV; what is no JSON can be sent as lines to another topic."""
    (tmp_path / "lines").write_bytes(b"1\n")
    (tmp_path / "json").write_bytes(b'{"id": 1}\n')
    (tmp_path / "csv").write_bytes(b"id\n2\n")
    memq("topic", "create", f"{topic}-typed", "--schema", "id:int64", "--no-audited")
    write = ["produce", f"{topic}-typed", "--input"]
    assert "--format json or --format csv" in memq(*write, tmp_path / "lines", code=1)
    memq(*write, tmp_path / "json", "--format", "json")
    memq(*write, tmp_path / "csv", "--format", "csv")
    keyed = [*write, tmp_path / "json", "--format", "json", "--key", "k"]
    assert "leave out --key and --header" in memq(*keyed, code=1)
    (tmp_path / "text").write_bytes(b"no json\n")
    text = ["produce", topic, "--input", tmp_path / "text", "--format"]
    assert "use --format lines" in memq(*text, "json", code=1)
    memq(*text, "lines")


@follows("cut it, or raise the topic's message_bytes (64MiB at most) with `memq topic alter`")
def test_a_long_line_is_cut_or_the_topic_takes_more(memq, topic, tmp_path):
    """Both ways out of a line that is too long."""
    long, line = b"x" * 3_000, tmp_path / "line"
    line.write_bytes(long)
    memq("topic", "alter", topic, "--message-bytes", "1KiB")
    said = memq("produce", topic, "--input", line, code=1)
    (command,) = advised(said)
    line.write_bytes(long[: int(re.search(r"more than the (\d+) bytes", said)[1])])
    memq("produce", topic, "--input", line)
    memq(*command, topic, "--message-bytes", "1MiB")
    line.write_bytes(long)
    memq("produce", topic, "--input", line)


@follows("close all of them first; the session of one that was killed ends within")
def test_members_are_closed_before_a_group_is_moved(memq, broker, topic, lines):
    """A group with members stays where it is; when they have ended it moves."""
    memq("produce", topic, "--input", lines)
    member = start("consume", topic, "--group", "busy", "--from-beginning", "-b", broker.address)
    member.stdout.readline()
    move = ["group", "reset-offsets", "busy", topic, "--to-earliest", "--execute"]
    assert "has 1 live member: close all of them first" in memq(*move, code=1)
    member.terminate()
    end(member)
    memq(*move)


@follows("the others are the defaults: set them with `memq topic alter`")
def test_options_that_were_lost_are_set_again(memq, tmp_path, lines, monkeypatch):
    """A topic whose catalog is lost is found by its objects, and gets its options back."""
    data = tmp_path / "data"
    with BrokerProcess(data) as running:
        monkeypatch.setenv("MEMQ_BOOTSTRAP", running.address)
        memq("topic", "create", "t", "--batch-age", "20ms", "--retention", "30d")
        memq("produce", "t", "--input", lines)
        running.terminate()
    shutil.rmtree(data / "queue" / "topics")
    shutil.rmtree(data / "topics")
    said = end(start("recover", data, "--topic", "t", "--execute"))[2]
    command = advised(said)[-1]
    with BrokerProcess(data) as running:
        monkeypatch.setenv("MEMQ_BOOTSTRAP", running.address)
        memq(*command, "t", "--retention", "30d")
        assert b"30d" in memq("topic", "describe", "t")


@follows("… = … is a file; give a folder, which is made where there is none")
def test_a_folder_is_given_for_data(tmp_path):
    """A file is no data directory; a folder that is not there yet is made."""
    (tmp_path / "file").touch()
    with pytest.raises(MemqError, match="is a file; give a folder"):
        BrokerProcess(tmp_path / "file")
    BrokerProcess(tmp_path / "not" / "there" / "yet").close()


@follows("data_dir is empty; name a folder, such as ./memq-data")
def test_data_is_given_a_folder(monkeypatch, tmp_path):
    """No name is not this folder; the folder that is named is made in it."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MemqError, match="data_dir is empty"):
        BrokerProcess("")
    assert list(tmp_path.iterdir()) == []
    BrokerProcess("./memq-data").close()


@follows("give --read-partitions, which consumers share, and --write-partitions")
def test_partitions_are_given_in_their_two_kinds(memq):
    """What Kafka has one number for has two flags here."""
    assert "give --read-partitions" in memq("topic", "create", "two", "--partitions", "4", code=2)
    memq("topic", "create", "two", "--read-partitions", "4", "--write-partitions", "4")


@follows(
    "… is a folder; name an object in it, or a topic for all of its Batches",
    "there is no object …; name one that `memq batch list TOPIC` shows",
    "so this looks like a broker's admin port; use the broker's port",
)
def test_what_is_there_is_named(memq, broker, topic, lines):
    """An object of the list, not its folder nor one that is not there; and the broker's port."""
    memq("produce", topic, "--input", lines)
    assert "there is no object" in memq("batch", "verify", "/nowhere/x.arrows", code=1)
    [row] = json.loads(memq("batch", "list", topic, "-o", "json"))
    folder = row["uri"].rpartition("/")[0]
    assert "is a folder" in memq("batch", "verify", unquote(urlsplit(folder).path), code=1)
    memq("batch", "verify", row["uri"])
    memq("batch", "verify", topic)
    admin_port = broker.admin.removeprefix("http://")
    assert "use the broker's port" in memq("topic", "list", "-b", admin_port, code=1)
    memq("topic", "list", "-b", broker.address)
