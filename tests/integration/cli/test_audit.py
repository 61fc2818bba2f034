"""`memq audit`: exit codes, tables and JSON."""

import json

from memq.cli.main import main
from tests.topics.audited import Topic, report


def test_command_names_what_is_lost(broker, capsys):
    """A clean audit ends with that word and exit code 0; a loss with 1, the sequences in the table,
    and the counts in the last line.
    """
    topic = Topic(broker)
    producer_id = topic.produce(6)
    code, lines = command(topic, "--all", capsys=capsys)
    assert (code, lines[-1]) == (0, "clean")
    assert lines[0].split()[:5] == ["PRODUCER", "EPOCH", "WRITE-PARTITION", "PRODUCED", "STORED"]
    assert lines[1].split() == [producer_id, *map(str, (0, 0, 18, 18, 0, 0, 0)), "-"]
    paths = topic.paths()
    for number in (1, 2, 4):
        paths[number].unlink()
    code, lines = command(topic, "--from", "1h", capsys=capsys)
    assert code == 1
    assert lines[0].split() == [
        "PROBLEM", "CONSUMER", "PRODUCER", "EPOCH", "WRITE-PARTITION", "LOGMESSAGES", "SEQUENCES",
    ]  # fmt: skip
    assert lines[1].split() == ["lost", "-", producer_id, "0", "0", "9", "1-2,4"]
    assert lines[-2] == "1 producer: 1 not clean; LogMessages: 18 produced, 9 stored"
    assert lines[-1] == (
        "NOT CLEAN: 3 objects or reports cannot be read; 9 LogMessages lost in 3 Messages"
    )


def command(topic, *options, capsys):
    """Exit code and lines of `memq audit`."""
    code = main(["audit", topic.name, "-b", topic.address, *options])
    return code, capsys.readouterr().out.splitlines()


def test_command_names_what_a_consumer_missed(broker, capsys):
    """Exit code 1, a row for each consumer and producer, and ranges that can be read again."""
    topic = Topic(broker)
    producer_id = topic.produce(8)
    report(topic, (0, 2), (5, 6), (7, 8))

    code, lines = command(topic, "--grace", "0s", capsys=capsys)

    assert code == 1
    problem = ["missed", "job", producer_id, "0", "0", "12"]
    assert lines[1].split()[:6] == problem
    assert lines[1].endswith("2-4 in 0:2-5, 6 in 0:6-7")
    assert "job: 1 producer: 1 not clean; LogMessages: 24 stored, 12 consumed, 0 behind" in lines
    assert lines[-1] == "NOT CLEAN: 12 LogMessages missed by job in 4 Messages"


def test_command_says_what_could_not_be_judged(broker, capsys):
    """Exit code 3 where nothing is wrong but something is not known, such as a wrong name."""
    topic = Topic(broker)
    topic.produce(1)
    code, lines = command(topic, "--consumer", "typo", "-o", "json", capsys=capsys)
    found = json.loads("\n".join(lines))
    assert (code, found["clean"], found["verdict"]) == (3, False, "partly judged")
    assert found["unjudged"] == ["There is no report of 'typo': nothing is known of it."]
