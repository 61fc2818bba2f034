"""Who a client is, and what it may do: at a broker that asks."""

import asyncio
import base64
import stat
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from scramp import ScramClient

from memq import AsyncProducer
from memq.broker import connection as connection_module
from memq.broker.access_control import FILE
from memq.core.access.principals import producer_suffix
from memq.core.access.rules import Rule
from memq.core.access.users import MECHANISM, SALT_BYTES, new_user
from memq.core.topic import TopicConfig
from memq.core.wire import messages as m
from memq.errors import (
    CorruptDataError,
    ForbiddenError,
    InvalidRequestError,
    MemqError,
    ProtocolError,
    TlsError,
    UnauthorizedError,
    UnavailableError,
    UnknownTopicError,
)
from memq.runtime.system import SYSTEM
from tests.harness.certificates import DAY, Certificates
from tests.integration.broker.support import broker, client, page, until

PASSWORD = "correct horse"  # noqa: S105 - of nobody
ADMIN = {"superusers": "User:root", "token": "root admin"}
USERS = {name: new_user(name, PASSWORD, bytes(SALT_BYTES)) for name in ("alice", "bob")}

SAMPLES: dict[str, Any] = {
    "topic": "t",
    "topics": ["t"],
    "config": TopicConfig.create("new"),
    "group": "g",
    "name": "alice",
    "user": USERS["alice"],
    "positions": [m.PartitionOffset(0, 0)],
    "offsets": [m.PartitionOffset(0, 0)],
    "principal": "User:alice",
    "operation": "read",
    "type": "topic",
    "holder": "User:alice",
    "limits": {"requests": 10},
}
"""Values of required fields, where those of their type will not do."""


def rule(principal: str, operation: str, kind: str, name: str, **more: Any) -> Rule:
    return Rule(principal=principal, operation=operation, type=kind, name=name, **more)


@asynccontextmanager
async def asking(tmp_path, *rules: Rule, **options: Any):
    """A broker that asks, with topic `t`, users and these rules; and a client that may do all."""
    options = {"authentication": "required"} | ADMIN | options
    async with broker(tmp_path, **options) as b, client(b, "admin") as root:
        for user in USERS.values():
            await root.ask(m.PutUser(user=user))
        await root.ask(m.AlterRules(add=[*rules]))
        await root.create("t", batch_age="1ms")
        yield b, root


def login(name: str = "alice", password: str = PASSWORD) -> dict[str, str]:
    return {"user": name, "password": password}


def basic(name: str, password: str = PASSWORD) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


# -- who it is ------------------------------------------------------------------------------


async def test_a_user_gets_in_with_the_password(tmp_path):
    """A user is a principal, and so is the holder of a token; each learns which."""
    async with asking(tmp_path) as (b, root):
        assert root.connection.principal == "User:root"
        async with client(b, **login()) as alice:
            assert alice.connection.principal == "User:alice"
        async with client(b, "admin", **login("bob")) as somebody:
            assert somebody.connection.principal == "User:bob", "it asks to be bob"


@pytest.mark.parametrize(
    ("token", "security", "said"),
    [
        ("", {}, "it asks who you are: give `user` and `password_file`"),
        ("wrong", {}, "refused the token"),
        ("admin", login(password="wrong password"), "refused user 'alice', or the password"),
        ("", login(password="wrong password"), "refused user 'alice', or the password"),
        ("", login(name="eve"), "refused user 'eve', or the password"),
        ("", login(name="e=,ve"), "refused user 'e=,ve', or the password"),
    ],
)
async def test_whom_the_broker_does_not_know_is_told_what_to_change(
    tmp_path, token, security, said
):
    """A user that is not there is told the same as a wrong password, after the same steps."""
    async with asking(tmp_path) as (b, _):
        with pytest.raises(UnauthorizedError, match=said):
            async with client(b, token, **security):
                pass
        await until(lambda: len(b.connections) == 1)


async def test_the_steps_do_not_tell_who_is_there(tmp_path):
    """The first answer has a salt that stays, for a name that is there and for one that is not."""
    async with asking(tmp_path) as (b, _):
        salts = {}
        for name in ("alice", "eve", "alice", "eve"):
            said = b"n,,n=%s,r=%s" % (name.encode(), b"nonce" * 4)
            async with raw(b) as connection:
                answer, _ = await connection.request(
                    m.Authenticate(mechanism="SCRAM-SHA-256", data=said), timeout_s=10
                )
            nonce, salt, iterations = answer.data.decode().split(",")
            assert (nonce.startswith("r=nonce"), iterations) == (True, "i=16384")
            salts.setdefault(name, set()).add(salt)
        assert [len(each) for each in salts.values()] == [1, 1]


@asynccontextmanager
async def raw(b):
    """A connection that has shaken hands, and says nothing more by itself."""
    from memq.client.connection import BrokerConnection

    class Silent(BrokerConnection):
        async def _log_in(self, *_):
            """Leave it to the test."""

    connection = await Silent.open(b.address, connect_timeout_s=10)
    try:
        yield connection
    finally:
        await connection.close()


@pytest.mark.parametrize(
    ("steps", "error"),
    [
        ([("PLAIN", b"x")], UnauthorizedError),
        ([("SCRAM-SHA-256", b"\xff")], UnauthorizedError),
        ([("SCRAM-SHA-256", b"n,,n=alice,r=abc")] * 3, UnauthorizedError),
        ([("SCRAM-SHA-256", b"n,,n=alice,r=abc"), ("PLAIN", b"c=biws")], UnauthorizedError),
        ([("SCRAM-SHA-256", b"n,a=root,n=alice,r=abc")], UnauthorizedError),
    ],
)
async def test_a_login_that_is_none_ends_the_connection(tmp_path, steps, error):
    """One attempt is all that a connection has."""
    async with asking(tmp_path) as (b, _):
        async with raw(b) as connection:
            with pytest.raises(MemqError) as told:
                for mechanism, data in steps:
                    step = m.Authenticate(mechanism=mechanism, data=data)
                    await connection.request(step, timeout_s=10)
            assert isinstance(told.value.__cause__, error)
        await until(lambda: len(b.connections) == 1)


@pytest.mark.parametrize("change", ["altered", "deleted"])
async def test_a_user_who_changes_during_a_login_is_not_logged_in(tmp_path, change):
    """A proof is good for the password that holds when it comes."""
    async with asking(tmp_path) as (b, root), raw(b) as connection:
        scram = ScramClient([MECHANISM], "alice", PASSWORD)

        async def step(said: str) -> str:
            request = m.Authenticate(mechanism=MECHANISM, data=said.encode())
            return (await connection.request(request, timeout_s=10))[0].data.decode()

        scram.set_server_first(await step(scram.get_client_first()))
        if change == "deleted":
            await root.ask(m.DeleteUser(name="alice"))
        else:
            user = new_user("alice", "another password", b"s" * SALT_BYTES)
            await root.ask(m.PutUser(user=user, replace=True))
        with pytest.raises(UnavailableError, match="refused user 'alice'"):
            await step(scram.get_client_final())


async def test_nobody_waits_before_the_door(tmp_path):
    """Who does not log in within the time is sent away, and takes no large header before."""
    async with asking(tmp_path, handshake_timeout="100ms") as (b, _), raw(b) as connection:
        await until(lambda: connection.closed)
        with pytest.raises(UnavailableError, match="not known within 100 ms"):
            await connection.request(m.Authenticate(mechanism="x", data=b""), timeout_s=10)
    async with asking(tmp_path / "2") as (b, _), raw(b) as connection:
        large = m.Authenticate(mechanism="x", data=bytes(20_000))
        with pytest.raises(MemqError) as told:
            await connection.request(large, timeout_s=10)
        assert isinstance(told.value.__cause__, ProtocolError | MemqError)
        assert "16384" in str(told.value)


async def test_who_is_known_does_not_log_in_again(tmp_path):
    """Authenticate on an open connection ends it."""
    async with asking(tmp_path) as (b, _), client(b, "admin") as root:
        with pytest.raises(UnavailableError, match="the broker knows who this client is"):
            await root.ask(m.Authenticate(mechanism="SCRAM-SHA-256", data=b"n,,n=bob,r=abc"))


@pytest.mark.parametrize(
    ("mapping", "principal"),
    [("", "User:web-1"), ("RULE:(.*)-1/$1/U", "User:WEB"), ("RULE:db/x/", None)],
)
async def test_a_certificate_says_who_its_client_is(tmp_path, mapping, principal):
    """By its name or by rules; one without a certificate logs in, and a CA of others is refused."""
    certificates = Certificates(tmp_path)
    options = certificates.broker_options() | {
        "tls_ca": certificates.ca,
        "client_auth": "optional",
        "certificate_principals": mapping,
    }
    cert, key = certificates.write(certificates.issue("web-1", client=True), "web")
    mine = {"ca": certificates.ca, "cert": cert, "key": key}
    async with broker(tmp_path, authentication="required", **ADMIN, **options) as b:
        if principal is None:
            with pytest.raises(UnauthorizedError, match="no rule of certificate_principals"):
                async with client(b, **mine):
                    pass
        else:
            async with client(b, **mine) as web:
                assert web.connection.principal == principal
        with pytest.raises(UnauthorizedError, match="it asks who you are"):
            async with client(b, ca=certificates.ca):
                pass
        foreign = Certificates(tmp_path, "foreign")
        cert, key = foreign.write(foreign.issue("web-1", client=True), "foreign")
        with pytest.raises(TlsError):
            async with client(b, ca=certificates.ca, cert=cert, key=key):
                pass


async def test_a_certificate_that_ends_ends_its_connections(tmp_path):
    """Nobody outlives the certificate that says who they are; others stay."""
    certificates = Certificates(tmp_path)
    options = certificates.broker_options() | {
        "tls_ca": certificates.ca,
        "client_auth": "optional",
    }
    later_ms = 0
    runtime = replace(SYSTEM, wall_ns=lambda: SYSTEM.wall_ns() + later_ms * 1_000_000)
    issued = certificates.issue("web-1", client=True, lasts=DAY)
    cert, key = certificates.write(issued, "web")
    mine = {"ca": certificates.ca, "cert": cert, "key": key}
    options |= {"authentication": "required"} | ADMIN
    async with (
        broker(tmp_path, runtime=runtime, **options) as b,
        client(b, **mine) as web,
        client(b, "admin", ca=certificates.ca) as root,
    ):
        later_ms = 2 * 86_400_000
        await until(lambda: web.connection.closed)
        with pytest.raises(UnavailableError, match="certificate or token has expired"):
            await web.ask(m.Metadata())
        await root.ask(m.ListUsers())


# -- what it may do -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [each for code, each in m.REQUESTS.items() if code not in (1, 6)],
    ids=lambda line: line.request.__name__,
)
async def test_without_a_rule_nothing_is_served(tmp_path, line):
    """Every request of the protocol is refused to a user without rules, or lists nothing; each of
    its needs alone is not enough.
    """
    request = sample(line.request)
    async with asking(tmp_path) as (b, root), client(b, **login()) as alice:
        assert line.needs, "a request without a rule"
        for left_out in line.needs:
            given = [
                rule("User:alice", each.operation, each.type, "*")
                for each in line.needs
                if each is not left_out
            ]
            await root.ask(m.AlterRules(add=given))
            try:
                answer = await alice.ask(request)
            except (ForbiddenError, UnknownTopicError) as exc:
                assert "User:alice" in str(exc)
            else:
                listed = [
                    getattr(answer, field)
                    for field in ("topics", "groups")
                    if hasattr(answer, field)
                ]
                assert left_out.each
                assert listed == [[]]
            await root.ask(m.AlterRules(remove=given))
        # With all of them it is not refused, whatever else is wrong with the request.
        await root.ask(
            m.AlterRules(
                add=[rule("User:alice", each.operation, each.type, "*") for each in line.needs]
            )
        )
        try:
            await alice.ask(request)
        except ForbiddenError as exc:
            raise AssertionError(exc) from exc
        except MemqError:
            pass


def sample(request: type[m.Struct]) -> m.Struct:
    """A request that means topic `t` and group `g`, as plain as can be."""
    fields = {}
    for field in msgspec.structs.fields(request):
        if field.name in SAMPLES and (field.required or field.name == "topic"):
            fields[field.name] = SAMPLES[field.name]
        elif field.required:
            fields[field.name] = {int: 0, str: "x"}.get(field.type, 0)
    return request(**fields)


async def test_rules_of_one_topic_are_of_that_topic(tmp_path):
    """Who may write a topic may describe it, may not read it, and sees no other."""
    rules = [rule("User:alice", "write", "topic", "t")]
    async with asking(tmp_path, *rules) as (b, root), client(b, **login()) as alice:
        await root.ask(m.CreateTopic(config=TopicConfig.create("secret")))
        await alice.know("t")
        own = "0" * 16 + producer_suffix("User:alice")
        assert (await alice.write(0, producer_id=own)).offset == 0
        found = await alice.ask(m.Metadata())
        assert [each.config.name for each in found.topics] == ["t"]
        with pytest.raises(ForbiddenError, match=r"User:alice may not read topic 't', from 127"):
            await alice.ask(sample(m.FetchNotifications))
        told = []
        for name in ("secret", "absent"):
            waits = m.FetchNotifications(
                topic=name, positions=[m.PartitionOffset(0, 99)], max_wait_ms=60_000
            )
            for request in (m.Metadata(topics=[name]), m.FetchOffsets(topic=name), waits):
                with pytest.raises(UnknownTopicError) as error:
                    await alice.ask(request)
                told.append(str(error.value).replace(name, "…"))
        assert len(set(told)) == 1, "what may not be described does not exist"


async def test_a_foreign_producer_id_is_not_taken_over(tmp_path):
    """A random id belongs to its principal, and a name needs a rule, beside that of the topic."""
    rules = [rule(f"User:{name}", "write", "topic", "t") for name in USERS]
    rules.append(rule("User:bob", "write", "producer_id", "etl-", prefixed=True))
    async with (
        asking(tmp_path, *rules) as (b, _),
        client(b, **login()) as alice,
        client(b, **login("bob")) as bob,
    ):
        ids = {name: "f" * 16 + producer_suffix(f"User:{name}") for name in USERS}
        for each in (alice, bob):
            await each.know("t")
        await alice.write(0, producer_id=ids["alice"])
        for foreign in (ids["alice"], "0" + ids["bob"], ids["bob"][1:], "p", "0" * 32):
            with pytest.raises(ForbiddenError, match="may not write producer_id"):
                await bob.write(0, producer_id=foreign, epoch=1)
        await bob.write(0, producer_id=ids["bob"])
        await bob.write(0, producer_id="etl-1")
        with pytest.raises(ForbiddenError):
            await alice.write(0, producer_id="etl-1")
        await alice.write(1, producer_id=ids["alice"])  # nobody has fenced it


async def test_a_rule_that_goes_takes_its_right_at_once(tmp_path):
    """Also from a Write that was allowed before, and from a fetch that waits."""
    rules = [
        rule("User:alice", "write", "topic", "t"),
        rule("User:alice", "read", "topic", "t"),
    ]
    own = "0" * 16 + producer_suffix("User:alice")
    async with asking(tmp_path, *rules) as (b, root), client(b, **login()) as alice:
        await alice.know("t")
        await alice.write(0, producer_id=own)
        fetch = m.FetchNotifications(
            topic="t", positions=[m.PartitionOffset(0, 1)], max_wait_ms=60_000
        )
        waiting = asyncio.create_task(alice.ask(fetch))
        await alice.ask(m.FetchOffsets(topic="t"))  # the fetch has come by then
        answer = await root.ask(m.AlterRules(remove=rules))
        assert (answer.added, answer.removed) == (0, 2)
        with pytest.raises(UnknownTopicError, match="that User:alice may describe"):
            await alice.write(1, producer_id=own)
        await root.know("t")
        await root.write(0, producer_id="p")
        with pytest.raises(UnknownTopicError):
            await waiting


async def test_who_may_not_write_takes_no_memory(tmp_path):
    """A Message is refused when its header has come, and what hears of it is its producer."""
    rules = [rule("User:alice", "read", "topic", "t")]
    async with asking(tmp_path, *rules) as (b, _), client(b, **login()) as alice:
        await alice.know("t")
        header, body = alice.message(0, bytes(1 << 20))
        with pytest.raises(ForbiddenError, match="may not write topic 't'"):
            await alice.ask(header, body)
        assert b.context.memory.peak_bytes < 1 << 19
        async with client(b, **login()) as other:
            with pytest.raises(UnavailableError, match="only a Write has a body"):
                await other.ask(m.FetchOffsets(topic="t"), body)
        assert b.context.memory.peak_bytes < 1 << 19
        async with client(b, **login()) as again:
            with pytest.raises(ForbiddenError):
                await again.ask(*alice.message(0))  # a small one costs no connection
            await again.ask(m.FetchOffsets(topic="t"))


async def test_long_names_are_not_remembered(tmp_path):
    """They are of nothing, and would fill the memory."""
    async with asking(tmp_path) as (b, _), client(b, **login()) as alice:
        [served] = [
            each for each in b.connections._open if each.session.access.principal == "User:alice"
        ]
        for number in range(20):
            name = f"{number}" * 10_000
            with pytest.raises(UnknownTopicError):
                await alice.ask(m.FetchOffsets(topic=name))
            with pytest.raises(UnknownTopicError):
                await alice.write(0, topic=name, producer_id=name)
        assert not served.session.access._answers
        assert not served.session.access.may_write


async def test_the_log_has_the_lines_of_the_broker_alone(tmp_path, caplog):
    """A name with a line break in it writes no line of its own."""
    async with asking(tmp_path) as (b, _), client(b, **login()) as alice:
        with pytest.raises(ForbiddenError):
            await alice.ask(m.DeleteGroup(topic="t", group="g\nWARNING all is well"))
    assert not any("\n" in record.getMessage() for record in caplog.records)


async def test_names_of_others_are_told_to_nobody(tmp_path):
    """Who asks for a topic that is not there is not told which there is."""
    rules = [rule("User:alice", "write", "topic", "pay", prefixed=True)]
    async with asking(tmp_path, *rules) as (b, root), client(b, **login()) as alice:
        await root.create("x-payments")
        with pytest.raises(UnknownTopicError) as error:
            await alice.write(0, topic="payments", producer_id=producer_suffix("User:alice") * 2)
        assert "x-payments" not in str(error.value)
        for request in (m.Metadata(topics=["payments"]), m.FetchOffsets(topic="payments")):
            with pytest.raises(UnknownTopicError) as error:
                await alice.ask(request)
            assert "x-payments" not in str(error.value)


async def test_those_who_say_nothing_make_room(tmp_path, monkeypatch):
    """For others when there are too many connections, or too many of one host."""
    async with asking(tmp_path, max_connections=5) as (b, root):
        async with AsyncExitStack() as stack:
            silent = [await stack.enter_async_context(raw(b)) for _ in range(4)]
            async with client(b, **login()), client(b, **login("bob")):
                await until(lambda: [each.closed for each in silent] == [True] * 2 + [False] * 2)
        monkeypatch.setattr(connection_module, "MAX_NOBODIES", 2)
        async with AsyncExitStack() as stack:
            silent = [await stack.enter_async_context(raw(b)) for _ in range(3)]
            await until(lambda: silent[0].closed)
            assert [each.closed for each in silent] == [True, False, False]
        await root.ask(m.ListUsers())


async def test_a_login_of_much_work_is_refused(tmp_path):
    """A broker looks at no name that is too long or not ASCII: folding it would take time."""
    for said in (b"n,,n=" + b"x" * 2_000 + b",r=a", "n,,n=\ufdfa,r=a".encode()):
        async with asking(tmp_path / str(len(said))) as (b, _), raw(b) as connection:
            with pytest.raises(UnavailableError, match="refused user ''"):
                await connection.request(
                    m.Authenticate(mechanism="SCRAM-SHA-256", data=said), timeout_s=10
                )


async def test_a_user_talks_to_no_broker_that_does_not_ask(tmp_path):
    """It could be anybody's: a broker of the cluster shows that it knows the user."""
    async with broker(tmp_path) as b:
        with pytest.raises(UnauthorizedError, match="it does not ask who you are"):
            async with client(b, **login()):
                pass


async def test_a_denial_wins(tmp_path):
    """Over a rule for everybody, from the hosts that it names."""
    rules = [
        rule("*", "all", "topic", "*"),
        rule("User:alice", "read", "topic", "t", allow=False, host="127.0.0.0/8"),
    ]
    async with asking(tmp_path, *rules) as (b, root), client(b, **login()) as alice:
        with pytest.raises(ForbiddenError, match="deny User:alice read topic t from 127"):
            await alice.ask(sample(m.FetchNotifications))
        check = m.CheckAccess(
            principal="User:alice", host="10.0.0.1", operation="read", type="topic", name="t"
        )
        answer = await root.ask(check)
        assert (answer.allowed, answer.why) == (True, "allow * all topic *")
        answer = await root.ask(msgspec.structs.replace(check, host="127.0.0.1"))
        assert not answer.allowed


async def test_users_that_go_are_gone(tmp_path):
    """A user that is deleted or altered, and the holder of a token that goes, are disconnected."""
    tokens = tmp_path / "tokens"
    tokens.write_text("root admin\ncarol hers\n")
    options = {"token_file": str(tokens), "token": ""}
    async with (
        asking(tmp_path, **options) as (b, root),
        client(b, **login()) as alice,
        client(b, **login("bob")) as bob,
        client(b, "hers") as carol,
    ):
        await root.ask(m.DeleteUser(name="alice"))
        await until(lambda: alice.connection.closed)
        with pytest.raises(UnavailableError, match="User:alice was deleted, or changed"):
            await alice.ask(m.Metadata())
        await root.ask(m.PutUser(user=new_user("bob", "other password", b"s" * 32), replace=True))
        await until(lambda: bob.connection.closed)
        with pytest.raises(UnauthorizedError):
            async with client(b, **login("bob")):
                pass
        async with client(b, **login("bob", "other password")):
            pass
        assert not carol.connection.closed
        tokens.write_text("root admin\ndave hers\n")
        b.reload()
        await until(lambda: carol.connection.closed)
        assert not root.connection.closed


async def test_users_and_rules_outlive_the_broker(tmp_path):
    """They stand in a file that only its owner reads; one that is damaged stops the start."""
    async with asking(tmp_path, rule("User:alice", "read", "topic", "t")) as (b, root):
        assert (await root.ask(m.ListUsers())).users == ["alice", "bob"]
    path = tmp_path / FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    async with (
        broker(tmp_path, authentication="required", **ADMIN) as b,
        client(b, **login()),
        client(b, "admin") as root,
    ):
        assert len((await root.ask(m.ListRules())).rules) == 1
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(CorruptDataError, match=r"access\.json.*put back a backup"):
        async with broker(tmp_path, authentication="required", **ADMIN):
            pass


async def test_a_change_that_cannot_be_stored_changes_nothing(tmp_path):
    """The client is told, and who was known before still is."""
    async with asking(tmp_path) as (b, root), client(b, **login()) as alice:
        (tmp_path / f"{FILE}.tmp").mkdir()
        with pytest.raises(MemqError, match="cannot write"):
            await root.ask(m.DeleteUser(name="alice"))
        assert not alice.connection.closed
        with pytest.raises(InvalidRequestError, match="exists already"):
            await root.ask(m.PutUser(user=USERS["alice"]))


@pytest.mark.parametrize(
    ("shown", "status"),
    [
        ("", 401),
        ("Bearer admin", 200),
        ("bearer admin", 200),
        ("Bearer wrong", 401),
        ("Bearer ", 401),
        (basic("alice"), 200),
        (basic("bob"), 403),
        (basic("alice", "wrong password"), 401),
        (basic("eve"), 401),
        (basic("e ve", ""), 401),
        ("Basic nonsense", 401),
    ],
)
async def test_pages_are_for_those_who_may_describe_the_cluster(tmp_path, shown, status):
    """All of the admin HTTP but what supervisors look at; with nothing of it in the refusal."""
    rules = [rule("User:alice", "describe", "cluster", "cluster")]
    async with asking(tmp_path, *rules) as (b, _):
        headers = {"Authorization": shown} if shown else {}
        for path in ("/", "/metrics", "/status", "/topics/t", "/nothing"):
            found, text = await page(b, path, **headers)
            assert found == (404 if (status, path) == (200, "/nothing") else status)
            assert status == 200 or len(text) < 200
        for path in ("/health", "/ready"):
            assert (await page(b, path))[0] == 200


async def test_who_comes_by_a_listener_that_asks_nobody_is_anonymous(tmp_path):
    """Rules hold there too as soon as another listener asks, which is how a cluster moves."""
    options = {"listeners": {"asks": {"port": 0, "authentication": "required"}}}
    async with broker(tmp_path, superusers=["User:root"], token="root admin", **options) as b:
        async with client(b, "admin", listener="asks") as root, client(b, "admin") as anybody:
            assert anybody.connection.principal == "User:anonymous"
            with pytest.raises(ForbiddenError, match="User:anonymous may not create topic 't'"):
                await anybody.create("t")
            await root.ask(m.AlterRules(add=[rule("User:anonymous", "all", "topic", "*")]))
            await anybody.create("t")
        with pytest.raises(UnauthorizedError):
            async with client(b):
                pass


async def test_who_nobody_asked_has_no_say(tmp_path, caplog):
    """Once rules decide, a broker that does not ask changes and tells no users and rules; what was
    made before is counted in the log.
    """
    async with broker(tmp_path) as b, client(b) as anybody:
        await anybody.ask(m.PutUser(user=USERS["alice"]))
    async with broker(tmp_path, authentication="required", **ADMIN) as b:
        assert "made before that, by anybody: 1 user, 0 rules" in caplog.text
        async with client(b, **login()):
            pass
    async with broker(tmp_path) as b, client(b) as anybody:
        for request in (
            m.ListUsers(),
            m.PutUser(user=USERS["bob"]),
            m.DeleteUser(name="alice"),
            m.ListRules(),
            m.AlterRules(add=[rule("User:bob", "all", "topic", "*")]),
            sample(m.CheckAccess),
        ):
            with pytest.raises(ForbiddenError, match="this broker asks nobody who they are"):
                await anybody.ask(request)
        await anybody.create("t")


async def test_rules_can_be_made_before_they_hold(tmp_path):
    """Without a listener that asks, everybody may do everything, and rules wait."""
    async with broker(tmp_path) as b, client(b) as anybody:
        await anybody.ask(m.PutUser(user=USERS["alice"]))
        await anybody.ask(m.AlterRules(add=[rule("User:alice", "all", "topic", "*")]))
        await anybody.create("t")
        check = m.CheckAccess(
            principal="User:alice", host="", operation="read", type="topic", name="t"
        )
        assert (await anybody.ask(check)).allowed
        check.principal = "User:anonymous"
        assert not (await anybody.ask(check)).allowed


async def test_a_producer_that_may_only_write_asks_once_why_acks_do_not_come(tmp_path):
    """It is denied the state of its broker once, and tells the last error from then on."""
    log = tmp_path / "access.log"
    rules = [rule("User:alice", "write", "topic", "t")]
    async with (
        asking(tmp_path, *rules, access_log=str(log)) as (b, _),
        AsyncProducer(b.address, topic="t", security=login()) as producer,
    ):
        producer._state_machine.overdue = lambda *_: (b.address, "the last error")
        for _ in range(3):
            assert await producer._trouble() == "the last error"
    denied = [line for line in log.read_text().splitlines() if '"denied"' in line]
    assert len([line for line in denied if "DescribeCluster" in line]) == 1


async def test_a_rule_that_is_taken_away_while_sts_is_asked_gives_no_credentials(tmp_path):
    """Who may not read any more gets none, though they are made by then."""
    may, sees = (rule("User:alice", each, "topic", "t") for each in ("read", "describe"))
    async with asking(tmp_path, may, sees) as (b, root), client(b, **login()) as alice:
        asked, made = asyncio.Event(), asyncio.Event()

        async def lend(request, access):
            asked.set()
            await made.wait()
            return m.FetchCredentialsAnswer(options={"access_key_id": "x"}, ttl_ms=1)

        table = b.handlers._table
        table[m.FetchCredentials] = table[m.FetchCredentials]._replace(serve=lend)
        answer = asyncio.ensure_future(alice.ask(m.FetchCredentials(topic="t")))
        await asked.wait()
        await root.ask(m.AlterRules(add=[], remove=[may]))
        made.set()
        with pytest.raises(ForbiddenError):
            await answer
