"""Readers of a bucket whose keys they do not have: brokers hand out credentials for one topic."""

import asyncio
import os
from functools import partial

import pytest

from memq import Consumer, Producer, audit_topic, scan
from memq.cli.main import main
from memq.client.topic import SyncTopicClient
from memq.core.access.rules import Rule
from memq.core.named_values import parse_storage_options
from memq.errors import (
    ConfigError,
    DataLossError,
    ForbiddenError,
    StorageError,
    UnavailableError,
    UnknownTopicError,
)
from memq.reading.objects import read_storage
from memq.spark.options import parse_read_options
from memq.spark.topic import open_objects
from memq.storage.object_store import ObjectStorage
from tests.integration.client.bucket import (
    ADMIN,
    BUCKET,
    OTHER,
    PASSWORD,
    RECORDS,
    ROOT,
    TOPIC,
    VALUES,
    WAIT_S,
    bucket_of,
)


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    """What this machine knows of clouds is not for these tests."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "MEMQ_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)


def polled(consumer):
    """Values of the next Batch."""
    return [each.value for each in consumer.poll(WAIT_S) or ()]


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    """See `Bucket`. In half an hour a user is given one session of a topic, and no second one."""
    with bucket_of(tmp_path_factory.mktemp("bucket")) as found:
        yield found
        assert set(found.s3.sessions.values()) <= {1}, found.s3.sessions


def test_whoever_may_read_a_topic_reads_it_from_the_bucket(bucket, monkeypatch, capsysbinary):
    """Each kind of reader has what was written, by one session, whose name says who it is."""
    assert bucket.range("alice") == VALUES
    with scan(bucket.address, **bucket.of("alice")) as rows:
        assert rows.read_all()["value"].to_pylist() == VALUES
    with Consumer(bucket.address, **bucket.of("alice", group="g")) as consumer:
        found = []
        while len(found) < RECORDS:
            found += polled(consumer)
    assert found == VALUES
    monkeypatch.setenv("MEMQ_BOOTSTRAP", bucket.address)
    monkeypatch.setenv("MEMQ_SECURITY", f"user=alice,password={PASSWORD}")
    text = ",".join(f"{name}={value}" for name, value in bucket.storage_options.items())
    monkeypatch.setenv("MEMQ_STORAGE_OPTIONS", text)
    assert main(["consume", TOPIC, "--from-beginning", "--exit-at-end"]) == 0
    assert capsysbinary.readouterr().out.split() == VALUES
    assert main(["batch", "verify", TOPIC]) == 0
    assert bucket.s3.sessions["memq-alice"] == 1
    result = asyncio.run(audit_topic(None, TOPIC, deep=True))
    assert not result.damage
    assert bucket.s3.sessions.pop("memq-alice") == 2, "the other one for the reports"
    assert {*bucket.s3.refusals} <= {"NoSuchKey"}, "which the broker asks for, to see who answers"


def test_credentials_are_for_the_objects_of_one_topic(bucket):
    """Nothing else can be read by them, not even a topic whose name begins so; nothing is written,
    and nothing is listed.
    """
    mine, other = bucket.notification(), bucket.notification(OTHER)
    with bucket.client("alice") as client:
        options = client.options_for(mine.uri)
    assert len(read_storage(mine.uri, 0, 100, options)) == 100
    key = mine.uri.removeprefix(f"s3://{BUCKET}/")
    for wrong in (
        other.uri,
        mine.uri.replace(f"/{mine.topic_id}/", f"/{'0' * 16}/"),  # one of that name, before
        mine.uri.replace("/memq/topics/", "/other/topics/"),
        mine.uri.replace(ROOT, "root"),
        mine.uri.replace(f"/{TOPIC}/", f"/{TOPIC}/../{OTHER}/").replace("..", "%2E%2E"),
    ):
        with pytest.raises((StorageError, ConfigError), match=r"AccessDenied|is not valid"):
            read_storage(wrong, 0, 100, options)
    storage = ObjectStorage(f"s3://{BUCKET}", "", dict(options))
    for act in (
        partial(storage.put, key, [b"other"], timeout_s=5),
        partial(storage.delete, key),
        storage.check,  # which lists
    ):
        with pytest.raises((StorageError, ConfigError), match="AccessDenied"):
            act()


def test_a_stranger_gets_nowhere(bucket):
    """Neither the broker nor the bucket gives anything to who may not read the topic."""
    hidden = f"no topic '{TOPIC}' that User:eve may describe"
    with pytest.raises(UnknownTopicError, match=hidden):
        bucket.range("eve")
    uri = bucket.notification().uri
    with bucket.client("eve") as client, pytest.raises(UnknownTopicError, match=hidden):
        client.options_for(uri)
    with bucket.client("bob", OTHER) as client:  # who may read another one
        of_another = client.options_for(uri)
    place = bucket.s3.place
    for options, code in (
        (of_another, "AccessDenied"),
        (place | {"skip_signature": "true"}, "AccessDenied"),
        (place | {"access_key_id": "AKIAEVE", "secret_access_key": "x"}, "InvalidAccessKeyId"),
        (
            place | {"access_key_id": bucket.s3.access_key, "secret_access_key": "x"},
            "SignatureDoesNotMatch",
        ),
        (
            {name: value for name, value in of_another if name != "session_token"},
            "AccessDenied",
        ),
    ):
        with pytest.raises(StorageError, match=code):
            read_storage(uri, 0, 1, parse_storage_options(dict(options)))
    assert "memq-eve" not in bucket.s3.sessions


def test_credentials_that_end_are_renewed_while_a_consumer_reads(tmp_path):
    """Sessions of two seconds come and go, and nothing is lost or read twice."""
    with (
        bucket_of(tmp_path, session_s=2.0) as bucket,
        Producer(bucket.address, topic=TOPIC, **ADMIN) as producer,
        Consumer(bucket.address, **bucket.of("alice")) as consumer,
    ):
        written, found = [*VALUES], []
        while bucket.s3.sessions["memq-alice"] < 5 or len(found) < len(written):
            if bucket.s3.sessions["memq-alice"] < 5:
                written.append(b"%d" % len(written))
                producer.write(written[-1]).result(WAIT_S)
            found += polled(consumer)
        assert found == written


def test_what_is_revoked_is_not_renewed(tmp_path):
    """Who may not read any more has its credentials until they end, and then one clear error."""
    with bucket_of(tmp_path, session_s=3.0) as bucket, bucket.client("alice") as client:
        uri = bucket.notification().uri
        before = client.options_for(uri)
        read = Rule(principal="User:alice", operation="read", type="topic", name=TOPIC)
        with bucket.admin() as admin:
            admin.alter_rules(remove=[read])
        with pytest.raises(ForbiddenError, match="User:alice may not read topic 'click'"):
            while True:
                assert client.options_for(uri) == before
        with pytest.raises(StorageError, match="ExpiredToken"):
            while True:
                read_storage(uri, 0, 1, before)


def test_sts_that_is_away_may_come_back(bucket):
    """Readers go on with what they have; who has none is told what is away, and tries again."""
    uri = bucket.notification().uri
    with bucket.client("alice") as client:
        before = client.options_for(uri)
        bucket.s3.sts_fails = True
        assert client.options_for(uri) == before
    with bucket.client("carol", OTHER, request_timeout_s=2.0) as client:
        with pytest.raises(
            UnavailableError, match="STS gives the broker no session: ServiceUnavailable"
        ):
            client.options_for(uri)
        bucket.s3.sts_fails = False
        assert client.options_for(uri)


def test_a_broker_without_a_role_says_so_at_once(tmp_path):
    """The error names the option, and is not retried."""
    with bucket_of(tmp_path, credentials_role="", credentials_endpoint="") as bucket:
        with pytest.raises(ConfigError, match="set its option credentials_role"):
            bucket.range("alice", timeout=10)
        options = {**bucket.s3.owner}
        assert bucket.range("alice", storage_options=options) == VALUES


def test_an_object_that_is_gone_is_told_from_one_that_is_denied(bucket, monkeypatch):
    """S3 says 403 for both to who may not list; the broker knows."""
    uri = bucket.notification(OTHER).uri
    (bucket.s3.folder / uri.removeprefix("s3://")).unlink()
    with pytest.raises(DataLossError, match="is gone"):
        bucket.range("bob", OTHER)
    assert bucket.range("bob", OTHER, start=1) == VALUES[1:]
    monkeypatch.setitem(bucket.s3.role_policy["Statement"][0], "Action", "s3:Put*")
    reading = bucket.of("bob", OTHER, start={0: 1}, request_timeout="1s")
    with (
        Consumer(bucket.address, **reading) as consumer,
        pytest.raises(StorageError, match="AccessDenied"),
    ):
        consumer.poll(WAIT_S)


def test_tasks_of_spark_ask_by_themselves(bucket):
    """What a task is given has no secret; it reads, and says what is gone."""
    texts = {
        "bootstrap": bucket.address,
        "topic": TOPIC,
        "security": f"user=alice,password={PASSWORD}",
        "storageOptions": ",".join(f"{n}={v}" for n, v in bucket.storage_options.items()),
    }
    options = parse_read_options(texts)
    assert {name for name, _ in options.storage_options} == {"credentials", "endpoint", "region"}
    with SyncTopicClient(bucket.address, TOPIC, **ADMIN) as client:
        [first, *_] = client.batches(client.ranges_between(None, None))
    with open_objects(options) as get_range:
        assert len(get_range(first, 0, 100)) == 100


def test_who_gives_keys_as_well_is_told_to_leave_out_one(bucket):
    """Neither silently wins."""
    for more in ({"access_key_id": "x"}, {"AWS_PROFILE": "x"}, {"credentials": "brokr"}):
        options = bucket.storage_options | more
        with pytest.raises(ConfigError, match="must be broker, with no key or profile"):
            bucket.range("alice", storage_options=options)
