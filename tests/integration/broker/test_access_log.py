"""The access log: what it says, and what it never does."""

import json

import pytest

from memq.broker import access_log
from memq.broker.access_log import AccessLog
from memq.core.access.principals import producer_suffix
from memq.core.access.rules import Access, Rules
from memq.core.wire import messages as m
from memq.errors import ConfigError, ForbiddenError, InvalidRequestError, UnauthorizedError
from memq.runtime.system import Runtime
from tests.integration.broker.support import broker, client, until
from tests.integration.broker.test_access import PASSWORD, USERS, asking, login, rule

ALICE = Access("User:alice", "10.0.0.7", Rules())


def lines(path) -> list[dict]:
    """What the log has, without when and where."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    for each in found:
        assert each.pop("time").endswith("Z")
        assert each.pop("broker") == "broker-1"
    return found


async def test_who_did_what_stands_in_the_log(tmp_path) -> None:
    """Logins and failures, denials, and changes with what was there before; no data, no secret."""
    path = tmp_path / "access.log"
    rules = [rule("User:alice", "write", "topic", "t")]
    async with asking(tmp_path, *rules, access_log=str(path)) as (b, root):
        async with client(b, **login()) as alice:
            await alice.know("t")
            await alice.write(0, producer_id="0" * 16 + producer_suffix("User:alice"))
            with pytest.raises(ForbiddenError):
                await alice.ask(m.AlterTopic(topic="t", options={"retention": "1d"}))
            with pytest.raises(ForbiddenError):
                await alice.write(1, producer_id="p")
            with pytest.raises(ForbiddenError):
                await alice.ask(m.ListUsers())
        for token, security in (("wrong", {}), ("", login("eve"))):
            with pytest.raises(UnauthorizedError):
                async with client(b, token, **security):
                    pass
        await root.ask(m.AlterTopic(topic="t", options={"retention": "1d"}))
        with pytest.raises(InvalidRequestError):
            await root.ask(m.DeleteUser(name="eve"))
        async with client(b, **login("bob")) as bob:
            await root.ask(m.DeleteUser(name="bob"))
            await until(lambda: bob.connection.closed)
    found = lines(path)
    assert {(each["host"], each["client"]) for each in found} == {("127.0.0.1", "test")}
    told = [
        (each["event"], each["principal"], each["outcome"], each.get("request"))
        for each in found
        if each["event"] not in ("PutUser", "AlterRules", "CreateTopic")
    ]
    altered = {"topic": "t", "options": {"retention": "1d"}}
    assert told == [
        ("login", "User:root", "ok", None),
        ("login", "User:alice", "ok", None),
        ("AlterTopic", "User:alice", "forbidden", altered),
        ("denied", "User:alice", "forbidden", "Write"),
        ("denied", "User:alice", "forbidden", "ListUsers"),
        ("login", "", "unauthorized", None),
        ("login", "", "unauthorized", None),
        ("AlterTopic", "User:root", "ok", altered),
        ("DeleteUser", "User:root", "invalid_request", {"name": "eve"}),
        ("login", "User:bob", "ok", None),
        ("disconnected", "User:bob", "unauthorized", None),
        ("DeleteUser", "User:root", "ok", {"name": "bob"}),
    ]
    before = [each["before"] for each in found if each["event"] == "AlterTopic"]
    assert [each["retention_ms"] for each in before] == [7 * 86_400_000] * 2
    assert [each.get("user") for each in found if each["outcome"] == "unauthorized"][:2] == [
        None,
        "eve",
    ]
    made = [each["request"] for each in found if each["event"] == "PutUser"]
    assert made == [{"name": name, "replace": False} for name in USERS]
    assert PASSWORD not in path.read_text()


async def test_without_rules_changes_are_noted_all_the_same(tmp_path) -> None:
    """And by whom, as far as that is known; a connection alone is nothing to note."""
    path = tmp_path / "access.log"
    async with broker(tmp_path, access_log=str(path)) as b, client(b) as anybody:
        await anybody.create("t")
    [made] = lines(path)
    assert (made["event"], made["principal"]) == ("CreateTopic", "User:anonymous")
    assert made["request"]["config"]["name"] == "t"


def make(path, lost, now_s=lambda: 1):
    return AccessLog(str(path), "broker-1", Runtime(wall_ns=lambda: now_s() * 10**9), lost)


class Lost:
    """A counter."""

    count = 0

    def inc(self) -> None:
        self.count += 1


def test_a_flood_is_cut_and_counted(tmp_path, monkeypatch) -> None:
    """Lines beyond the limit of a second are left out, whoever causes them, and nobody waits."""
    monkeypatch.setattr(access_log, "MAX_LINES_S", 5)
    lost, seconds = Lost(), [1]
    log = make(tmp_path / "log", lost, lambda: seconds[-1])
    for _ in range(2):
        for number in range(8):
            log.note("x", ALICE, "c", number=number)
        seconds.append(2)
    log.close()
    assert [each["number"] for each in lines(tmp_path / "log")] == [0, 1, 2, 3, 4] * 2
    assert lost.count == 6
    log.note("x", ALICE, "c")


def test_a_file_that_is_moved_away_is_made_again(tmp_path) -> None:
    """As logrotate does; what cannot be written is counted, and ends nothing."""
    path, lost = tmp_path / "log", Lost()
    log = make(path, lost)
    log.note("first", ALICE, "c")
    log._thread.queue.join()
    path.rename(tmp_path / "old")
    log.note("second", ALICE, "c")
    log._thread.queue.join()
    assert [lines(each)[0]["event"] for each in (tmp_path / "old", path)] == ["first", "second"]
    path.unlink()
    path.mkdir()
    log.note("third", ALICE, "c")
    log.close()
    assert lost.count == 1


def test_a_file_that_cannot_be_written_stops_the_start(tmp_path) -> None:
    """The error names it."""
    with pytest.raises(ConfigError, match=r"access_log = .*none/log: cannot be written"):
        make(tmp_path / "none" / "log", Lost())
