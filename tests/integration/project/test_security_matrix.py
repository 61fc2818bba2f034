"""Every client at a broker that asks: it gets in, or says in one clear line what to change."""

import asyncio
import json
import time
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from memq import AdminClient, Consumer, Producer, read_range
from memq.cli.main import main
from memq.client.security import security_values
from memq.core.access.rules import Rule
from memq.core.access.users import SALT_BYTES, new_user
from memq.core.named_values import text_of
from memq.core.wire import messages as m
from memq.errors import ConfigError, MemqError, TlsError, UnauthorizedError, UnknownTopicError
from memq.spark import MemqDataSource
from memq.spark.options import parse_write_options
from memq.spark.writer import plan_write, write_rows
from tests.fakes.sts import ACCOUNT, Sts
from tests.harness.certificates import DAY, Certificates
from tests.integration.broker.support import broker, client
from tests.integration.broker.test_oidc import TestIssuer

TOPIC = "clicks"
LIMIT_S = 10.0  # within which a client has to say so
PASSWORD = "correct horse"  # noqa: S105 - of nobody
COLUMNS = StructType([StructField("value", StringType())])


class House:
    """A broker with a listener of each kind, and what clients show it, by the row's name."""

    def __init__(self, folder, certificates: Certificates, issuer: TestIssuer, b) -> None:
        self.broker = b
        self.certificates, others = certificates, Certificates(folder, "others")
        ca = self.certificates.ca
        both = folder / "both.pem"
        both.write_bytes(b"".join(Path(each).read_bytes() for each in (ca, others.ca)))
        valid, wrong_key = self._certificate("valid"), self._certificate("other")
        token = folder / "token"
        token.write_text(issuer.token(exp=-3_600))
        user = {"ca": ca, "user": "alice", "password": PASSWORD}
        self.shown = {
            "a user": user,
            "a certificate": {"ca": ca} | valid,
            "a CA that is replaced": user | {"ca": str(both)},
            "an expired certificate": {"ca": ca} | self._certificate("late", -3 * DAY, DAY),
            "an early certificate": {"ca": ca} | self._certificate("early", DAY),
            "a revoked certificate": {"ca": ca} | self._certificate("revoked"),
            "another key": {"ca": ca, "cert": valid["cert"], "key": wrong_key["key"]},
            "another name": user | {"server_name": "broker-2.example.com"},
            "another CA": user | {"ca": others.ca},
            "plain on TLS": {"user": "alice", "password": PASSWORD},
            "TLS on plain": user,
            "nothing": {"ca": ca},
            "a wrong password": user | {"password": "wrong password"},
            "an unknown user": user | {"user": "eve"},
            "an expired token": {"ca": ca, "token_file": str(token)},
            "a revoked rule": user | {"user": "bob"},
            "an AWS role": {"ca": ca, "aws_iam": "memq-tests"},
            "an AWS role for others": {"ca": ca, "aws_iam": "staging"},
        }

    def _certificate(self, name, begins=timedelta(), lasts=90 * DAY):
        issued = self.certificates.issue("alice", client=True, begins=begins, lasts=lasts)
        if name == "revoked":
            self.certificates.revoke(issued)
            self.broker.reload()
        cert, key = self.certificates.write(issued, name)
        return {"cert": cert, "key": key}

    def address(self, row: str) -> str:
        return self.broker.listeners["plain" if row == "TLS on plain" else "default"].address


REFUSED = {
    "an expired certificate": (TlsError, "certificate has expired"),
    "an early certificate": (TlsError, "not valid yet"),
    "a revoked certificate": (TlsError, "revoked"),
    "another key": (ConfigError, "key"),
    "another name": (TlsError, "its certificate has another name"),
    "another CA": (TlsError, "of a CA that is not in"),
    "plain on TLS": (TlsError, "give `ca`"),
    "TLS on plain": (TlsError, "does not speak TLS"),
    "nothing": (UnauthorizedError, "it asks who you are"),
    "a wrong password": (UnauthorizedError, "refused user 'alice', or the password"),
    "an unknown user": (UnauthorizedError, "refused user 'eve', or the password"),
    "an expired token": (UnauthorizedError, "the token has expired: get another"),
    "an AWS role for others": (UnauthorizedError, "another audience than aws_iam = 'staging'"),
    "a revoked rule": (UnknownTopicError, "that User:bob may describe"),
}


# -- the clients ----------------------------------------------------------------------------


def produce(address, security):
    with Producer(address, topic=TOPIC, security=security, max_block="8s") as producer:
        producer.write(b"x").result(LIMIT_S)


def consume(address, security):
    options = {"security": security, "start": "earliest", "read_through": "broker"}
    with Consumer(address, topic=TOPIC, group="g", **options) as consumer:
        assert consumer.poll(LIMIT_S)


def administer(address, security):
    with AdminClient(address, security=security, request_timeout_s=8) as admin:
        admin.offsets(TOPIC)


def read(address, security):
    options = {"security": security, "read_through": "broker"}
    assert read_range(
        address, topic=TOPIC, partition=0, start=0, end=1, timeout=8, **options
    ).num_rows


def spark_options(address, security):
    return {"bootstrap": address, "topic": TOPIC, "security": text_of(security_values(security))}


def plan_and_read_with_spark(address, security):
    """The driver plans, and an executor reads."""
    options = spark_options(address, security) | {"readThrough": "broker"}
    source = MemqDataSource(options)
    reader = source.reader(source.schema())
    for part in reader.partitions():
        assert sum(batch.num_rows for batch in reader.read(part))


def write_with_spark(address, security):
    """An executor writes by the plan of the driver, whose token is still good then."""
    parsed = parse_write_options(spark_options(address, security))
    plan = plan_write(parsed, COLUMNS, overwrite=False, now_us=time.time_ns() // 1_000)
    write_rows(plan, iter([pa.record_batch([pa.array(["x"])], ["value"])]), str(time.time_ns()))


def command(address, security):
    """What a command says on stderr is the error."""
    arguments = ["offsets", TOPIC, "-b", address, "--security", text_of(security_values(security))]
    if main(arguments):
        raise MemqError("told on stderr")


def hook_of(address, security, monkeypatch):
    pytest.importorskip("airflow.sdk")
    from airflow.sdk import Connection

    from airflow_provider_memq.hooks.memq import MemqHook

    login = {"login": security.get("user"), "password": security.get("password")}
    rest = {name: value for name, value in security.items() if name not in ("user", "password")}
    host, port = address.split(":")
    extra = {"security": rest, "request_timeout_s": 8}
    made = Connection(
        conn_id="secure",
        conn_type="memq",
        host=host,
        port=int(port),
        extra=json.dumps(extra),
        **login,
    )
    monkeypatch.setenv("AIRFLOW_CONN_SECURE", made.get_uri())
    return MemqHook("secure")


CLIENTS = [produce, consume, administer, read, plan_and_read_with_spark, write_with_spark, command]


@asynccontextmanager
async def house(folder, monkeypatch):
    """The broker, with a user, a certificate and an AWS role that may do all with the topic."""
    certificates = Certificates(folder)
    options = certificates.broker_options() | {
        "tls_ca": certificates.ca,
        "tls_crl": certificates.revoke(),
        "client_auth": "optional",
        "authentication": "required",
        "superusers": "User:root",
        "token": "root admin",
        "listeners": {"plain": {"port": 0}},
    }
    async with TestIssuer().serve() as issuer, Sts().serve() as sts:
        for name, value in sts.environment("ASIAETL").items():
            monkeypatch.setenv(name, value)
        tables = {
            "oidc": {"here": {"issuer": issuer.url, "audience": "memq", "prefix": "idp:"}},
            "aws_iam": sts.table("memq-tests"),
        }
        async with broker(folder, **tables, **options) as b:
            async with client(b, "admin", ca=certificates.ca) as root:
                await root.create(TOPIC, batch_age="5ms", audited=False)
                for name in ("alice", "bob"):
                    user = new_user(name, PASSWORD, bytes(SALT_BYTES))
                    await root.ask(m.PutUser(user=user))
                rules = [
                    Rule(principal=principal, operation="all", type=kind, name="*")
                    for kind in ("topic", "group", "producer_id")
                    for principal in ("User:alice", f"User:arn:aws:iam::{ACCOUNT}:role/etl")
                ]
                await root.ask(m.AlterRules(add=rules))
                await root.write(0, topic=TOPIC)
            yield House(folder, certificates, issuer, b)


async def told(act, row: str, capfd) -> None:
    """What a client says at one row, and how soon."""
    begun_s = time.monotonic()
    if row not in REFUSED:
        await act()
        return
    kind, said = REFUSED[row]
    with pytest.raises(MemqError) as error:
        await act()
    assert time.monotonic() - begun_s < LIMIT_S, row
    text = f"{error.value}{capfd.readouterr().err}"
    assert said in text, (row, text)
    assert "\n" not in str(error.value), row
    assert str(error.value) == "told on stderr" or isinstance(error.value, kind), (row, error.value)
    assert not error.value.retriable


@pytest.mark.parametrize("act", CLIENTS, ids=lambda act: act.__name__)
async def test_each_client_at_each_door(tmp_path, capfd, monkeypatch, act):
    """It gets in where it may, and is told soon where not; the error is not one to retry."""
    async with house(tmp_path, monkeypatch) as here:
        for row, security in here.shown.items():
            address = here.address(row)
            await told(lambda: asyncio.to_thread(act, address, security), row, capfd)  # noqa: B023


@pytest.mark.parametrize("place", ["task", "trigger"])
async def test_airflow_at_each_door(tmp_path, capfd, monkeypatch, place):
    """Tasks and triggers say the same, by a connection whose login is the user."""
    async with house(tmp_path, monkeypatch) as here:
        for row, security in here.shown.items():
            hook = hook_of(here.address(row), security, monkeypatch)

            async def look(hook=hook):
                if place == "task":
                    await asyncio.to_thread(hook.state, TOPIC)
                    return
                async with await hook.atopic(TOPIC) as topic:
                    await topic.offsets()

            await told(look, row, capfd)
