"""A broker on a bucket that only it may read, and users who are lent credentials for a topic."""

from contextlib import contextmanager

from memq import AdminClient, Producer, read_range
from memq.client.topic import SyncTopicClient
from memq.core.access.rules import Rule
from memq.testing.broker import BrokerProcess
from tests.harness.services.signed_s3 import ROLE, SignedS3

BUCKET, ROOT = "logs", "some/root"
TOPIC, OTHER = "click", "clicks"  # the one is a prefix of the other
PASSWORD = "correct horse"  # noqa: S105 - of nobody
ADMIN = {"token": "hush"}
RECORDS = 3
VALUES = [b"%d" % number for number in range(RECORDS)]
MAY = [("read", "topic", TOPIC), ("write", "topic", TOPIC), ("read", "group", "*")]
WAIT_S = 60.0  # a backstop, no measure of speed


class Bucket:
    """A broker on a bucket, and what its users give to read there."""

    def __init__(self, s3, broker):
        self.s3, self.address = s3, broker.address
        self.storage_options = {"credentials": "broker", **s3.place}

    def of(self, user, topic=TOPIC, **more):
        """Arguments of a reader."""
        security = {"user": user, "password": PASSWORD}
        given = {"topic": topic, "security": security, "storage_options": self.storage_options}
        return given | more

    def range(self, user, topic=TOPIC, end=RECORDS, **more):
        """Values of the first Batches of a topic."""
        more = {"partition": 0, "start": 0, "end": end, "timeout": WAIT_S} | more
        return read_range(self.address, **self.of(user, topic, **more))["value"].to_pylist()

    def produce(self, values, topic=TOPIC):
        with Producer(self.address, topic=topic, **ADMIN) as producer:
            for value in values:
                producer.write(value).result(WAIT_S)

    def admin(self):
        return AdminClient(self.address, **ADMIN)

    def notification(self, topic=TOPIC):
        """The first of a topic."""
        with SyncTopicClient(self.address, topic, **ADMIN) as client:
            return next(iter(client.batches(client.ranges_between(None, None)))).notification

    @contextmanager
    def client(self, user, topic=TOPIC, **more):
        with SyncTopicClient(self.address, **self.of(user, topic, **more)) as client:
            yield client


@contextmanager
def bucket_of(tmp_path, *, session_s=None, **options):
    """See `Bucket`. Alice may read and write one topic, Bob and Carol read the other, Eve nothing.

    Args:
        tmp_path: for objects and broker.
        session_s: as `SignedS3`.
        options: of the broker; an empty one is left out.
    """
    with SignedS3(tmp_path / "s3", session_s=session_s) as s3:
        s3.make_bucket(BUCKET)
        options = {
            "storage": f"s3://{BUCKET}/{ROOT}",
            "storage_options": ",".join(f"{name}={value}" for name, value in s3.owner.items()),
            "credentials_role": ROLE,
            "credentials_endpoint": s3.endpoint,
            "authentication": "required",
            "token": "admin hush",
            "superusers": "User:admin",
        } | options
        given = {name: value for name, value in options.items() if value}
        with BrokerProcess(tmp_path / "broker", start_timeout_s=2 * WAIT_S, **given) as broker:
            found = Bucket(s3, broker)
            with found.admin() as admin:
                for topic in (TOPIC, OTHER):
                    admin.create_topic(topic, batch_age="10ms", read_partitions=1, audited=True)
                for name in ("alice", "bob", "carol", "eve"):
                    admin.create_user(name, PASSWORD)
                rules = [
                    *(("alice", *each) for each in MAY),
                    *((each, "read", "topic", OTHER) for each in ("bob", "carol")),
                ]
                rules += [("alice", each, "topic", "_memq_audit") for each in ("read", "write")]
                admin.alter_rules(
                    add=[
                        Rule(principal=f"User:{who}", operation=what, type=kind, name=name)
                        for who, what, kind, name in rules
                    ]
                )
            for topic in (TOPIC, OTHER):
                found.produce(VALUES, topic)
            yield found
