"""`memq user`, `memq acl` and `memq quota`, as an administrator uses them."""

import json

import pytest

from memq import AdminClient
from memq.cli.main import main
from memq.testing.broker import BrokerProcess


@pytest.fixture(scope="module")
def asking(tmp_path_factory):
    """A broker that asks who its clients are."""
    options = {"superusers": "User:root", "token": "root admin", "authentication": "required"}
    with BrokerProcess(tmp_path_factory.mktemp("asking"), **options) as process:
        with AdminClient(process.address, token="admin") as admin:
            admin.create_topic("clicks", batch_age="5ms")
        yield process


@pytest.fixture
def memq(asking, monkeypatch, capfd, tmp_path):
    """Runs a command; returns its rows, or what it printed on stderr."""
    monkeypatch.setenv("MEMQ_BOOTSTRAP", asking.address)
    monkeypatch.setenv("MEMQ_TOKEN", "admin")
    password = tmp_path / "password"
    password.write_text("correct horse\n")

    def run(*arguments, code=0, user="", stdin=""):
        monkeypatch.setenv("MEMQ_SECURITY", f"user={user},password_file={password}" * bool(user))
        (tmp_path / "stdin").write_text(stdin)
        with (tmp_path / "stdin").open() as file:
            monkeypatch.setattr("sys.stdin", file)
            assert main([*arguments, *(() if "-o" in arguments else ("-o", "json"))]) == code
        out, err = capfd.readouterr()
        return json.loads(out) if code == 0 else out + err

    run.password = str(password)
    return run


def test_users_from_their_first_day_to_their_last(memq):
    """They are created, log in, get another password, and go; rules about them are pointed at."""
    row = {"user": "ann", "principal": "User:ann"}
    assert memq("user", "create", "ann", "--password-file", memq.password) == [row]
    assert row in memq("user", "list")
    assert "already" in memq("user", "create", "ann", "--password-file", memq.password, code=1)
    assert "User:ann may not describe cluster" in memq("user", "list", code=1, user="ann")
    assert memq("topic", "list", user="ann") == []
    memq("acl", "add", "User:ann", "--operation", "describe", "--topic", "click*")
    assert [each["topic"] for each in memq("topic", "list", user="ann")] == ["clicks"]
    memq("user", "alter", "ann", "--password-file", "-", stdin="another one\n")
    assert "refused user 'ann', or the password" in memq("topic", "list", code=1, user="ann")
    assert "add --yes" in memq("user", "delete", "ann", code=2)
    memq("user", "delete", "ann", "--yes")
    assert "no user 'ann'" in memq("user", "delete", "ann", "--yes", code=1)
    memq("acl", "remove", "User:ann", "--yes")


def test_a_password_is_on_no_command_line(memq, tmp_path):
    """It is read from a file or at a terminal; one that is too short is not shown."""
    assert "give --password-file" in memq("user", "create", "x", code=2)
    said = memq("user", "create", "x", "--password-file", "-", code=1, stdin="short\n")
    assert "at least 8 characters" in said
    assert "short" not in said
    assert "cannot read" in memq("user", "create", "x", "--password-file", "/none", code=1)


PRODUCER = [
    ("User:web", "allow", "write", "topic", "clicks", "literal"),
    ("User:web", "allow", "write", "topic", "_memq_audit", "literal"),
]


def rows(found):
    return [tuple(each.values())[:6] for each in found]


def test_rules_for_a_producer_and_a_consumer(memq, asking, tmp_path):
    """They are what a producer and a member of a group need, and no more."""
    memq("user", "create", "web", "--password-file", memq.password)
    security = {"user": "web", "password": "correct horse"}
    from memq import Consumer, Producer
    from memq.errors import ForbiddenError, UnknownTopicError

    def produce():
        with Producer(asking.address, topic="clicks", security=security) as producer:
            producer.write(b"x").result(30)

    with pytest.raises(UnknownTopicError):
        produce()
    assert rows(memq("acl", "add", "User:web", "--producer", "--topic", "clicks")) == PRODUCER
    produce()
    options = {"security": security, "topic": "clicks", "group": "g", "read_through": "broker"}
    with pytest.raises(ForbiddenError), Consumer(asking.address, **options) as consumer:
        consumer.poll(30)
    memq("acl", "add", "User:web", "--consumer", "--topic", "clicks", "--group", "g*")
    with Consumer(asking.address, start="earliest", **options) as consumer:
        assert [each.value for each in consumer.poll(30)] == [b"x"]
        consumer.commit()
    policy = memq("acl", "export", "User:web", "--storage", "s3://bucket/memq")
    [statement] = policy["Statement"]
    assert statement["Resource"] == ["arn:aws:s3:::bucket/memq/??/memq/topics/clicks/*"]
    assert "IAM is for s3" in memq("acl", "export", "User:web", "--storage", "/x", code=1)
    allowed = memq("acl", "check", "User:web", "read", "group", "g1")
    assert allowed == [{"allowed": True, "why": "allow User:web read group g*"}]
    denied = memq("acl", "check", "User:web", "delete", "topic", "clicks", code=3)
    assert "no rule allows it" in denied
    found = memq("acl", "list", "User:web", "--topic", "clicks")
    assert {each["operation"] for each in found} == {"read", "write"}
    said = memq("acl", "remove", "User:web", "--group", "g*", code=2)
    assert "allow User:web read group g*" in said
    memq("acl", "remove", "User:web", "--group", "g*", "--yes")
    assert not memq("acl", "list", "User:web", "--group", "g*")
    assert "no rule says exactly that" in memq("acl", "remove", "User:web", "--group", "g", code=2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("User:a", "--topic", "t"), "one of --producer, --consumer and --operation"),
        (("User:a", "--producer"), "--producer needs --topic"),
        (("User:a", "--consumer", "--topic", "t"), "--consumer needs --group"),
        (("User:a", "--operation", "read"), "one of --topic, --group, --producer-id"),
        (("alice", "--operation", "read", "--topic", "t"), "write it as User:NAME"),
        (
            ("User:a", "--operation", "read", "--topic", "t", "--host", "web-1"),
            "write an address, a network",
        ),
    ],
)
def test_rules_that_make_no_sense_are_refused(memq, arguments, said):
    """The error says what is missing."""
    code = 2 if said.startswith(("one of", "--")) else 1
    assert said in memq("acl", "add", *arguments, code=code)


def test_quotas_are_set_listed_and_removed(memq):
    """Limits are set one by one, listed with the time that clients waited, and taken away."""
    memq("quota", "set", "User:etl", "--bytes-out", "1MiB", "--mutations", "5")
    memq("quota", "set", "User:etl", "--mutations", "0", "--requests", "9")
    assert memq("quota", "list") == [
        {"holder": "User:etl", "limit": "bytes_out", "value": 1 << 20, "waited_s": 0.0},
        {"holder": "User:etl", "limit": "requests", "value": 9, "waited_s": 0.0},
    ]
    memq("quota", "set", "User:etl", "--bytes-out", "0")
    assert [each["limit"] for each in memq("quota", "list")] == ["requests"]
    assert "memq quota set" not in memq("quota", "remove", "User:etl")
    assert memq("quota", "list") == []
    assert "no quota of 'User:etl'" in memq("quota", "remove", "User:etl", code=1)
    assert "give an option" in memq("quota", "set", "User:etl", code=2)
    assert "write User:NAME" in memq("quota", "set", "etl", "--requests", "1", code=1)
