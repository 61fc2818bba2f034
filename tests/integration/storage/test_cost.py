"""Model and meter of what is asked of a store, compared with what a real S3 server counted.

Brokers and readers reach the server by proxies of their own, which count every request.
"""

import os
import urllib.request
from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from memq import AdminClient, Consumer, Producer
from memq.core.cost import WORKLOAD_OPTIONS, Workload, list_requests, ranged_gets, whole_gets
from memq.core.options import defaults
from memq.storage.object_store import ObjectStorage
from memq.testing.broker import BrokerProcess
from tests.harness.services.http_faults import HttpFaultProxy, Latency, Rule
from tests.harness.services.s3proxy import REGION
from tests.integration.spark.here import read

TOLERANCE = 0.05
TOPIC = "t"
MIB = 1 << 20
ONE_RECORD = 2_000  # bytes of a Message of one record besides its value, and some
AGE = "3s"  # so that Batches are full, all but the last one


class Counting:
    """A proxy before the server, and what it has counted by the kinds that are billed."""

    def __init__(self, server, proxy):
        self._server, self._proxy = server, proxy
        self._lists = proxy.add(Rule(Latency(0.0), method="GET", key="list-type=2", times=None))

    @property
    def options(self):
        return {
            "endpoint": f"http://{self._proxy.address}",
            "region": REGION,
            "access_key_id": self._server.access_key,
            "secret_access_key": self._server.secret_key,
        }

    @property
    def text(self):
        return ",".join(f"{name}={value}" for name, value in self.options.items())

    def count(self):
        methods, lists = self._proxy.requests, self._proxy.struck[self._lists]
        return {
            "put": methods["PUT"],
            "get": methods["GET"] + methods["HEAD"] - lists,
            "list": lists,
            "delete": methods["POST"] + methods["DELETE"],
        }


@pytest.fixture
def counting(s3_server):
    """Makes proxies that count."""
    opened = []

    def make():
        opened.append(HttpFaultProxy("127.0.0.1", s3_server.port).__enter__())
        return Counting(s3_server, opened[-1])

    yield make
    for each in opened:
        each.__exit__()


@pytest.fixture
def run(bucket, tmp_path, counting):
    """A broker that stores in the bucket, by a proxy of its own."""
    brokers = []

    def start(**options):
        proxy = counting()
        uri = f"s3://{bucket}/root"
        broker = BrokerProcess(tmp_path, storage=uri, storage_options=proxy.text, **options)
        brokers.append(broker)
        return broker, proxy

    yield start
    for each in brokers:
        each.close()


def send(address, messages, message_bytes, **topic):
    """Make the topic and send so many Messages of one record of that size, as fast as they go."""
    limit = f"{message_bytes + ONE_RECORD}B"  # no second one has room
    with AdminClient(address) as admin:
        admin.create_topic(TOPIC, batch_age=AGE, message_bytes=limit, audited=False, **topic)
    with Producer(address, topic=TOPIC, message_bytes=limit) as producer:
        for _ in range(messages):
            producer.write(os.urandom(message_bytes))
        producer.flush()


def meter(broker):
    """What a broker's metrics say: of its store by kind, and by name of all without labels."""
    with urllib.request.urlopen(f"{broker.admin}/metrics") as answer:  # noqa: S310 - http
        families = [*text_string_to_metric_families(answer.read().decode())]
    samples = [sample for family in families for sample in family.samples]
    asked = {s.labels["kind"]: s.value for s in samples if s.name == "memq_storage_requests_total"}
    values = Counter({s.name: s.value for s in samples if set(s.labels) <= {"topic"}})
    return Counter(asked), values


def settled(broker, proxy):
    """What a broker says and what was counted, when nothing was asked in between."""
    while True:
        before = proxy.count()
        asked, _ = meter(broker)
        if proxy.count() == before:
            return asked, before


def modelled(values, **load):
    """The model of what a broker took in, in a second."""
    received = values["memq_bytes_received_total"]
    message_bytes = int(received / values["memq_messages_received_total"])
    given = {"mb_per_second": received / 1e6, "message_bytes": message_bytes, **load}
    return Workload(**defaults(WORKLOAD_OPTIONS) | given | {"batch_age_ms": 600_000})


def size_of(load):
    """Bytes of a Batch by the model."""
    return load.mb_per_second * 1e6 / load.batches_per_second


def off(said, counted):
    """Kinds of requests of which more was said or counted than the tolerance allows."""
    return {
        kind: (said.get(kind, 0), count)
        for kind, count in counted.items()
        if abs(said.get(kind, 0) - count) > TOLERANCE * count
    }


def read_all(address, proxy, batches):
    """Read so many Batches as a new reader does; what its own meter says."""
    options = proxy.options
    with Consumer(address, topic=TOPIC, start="earliest", storage_options=options) as consumer:
        for _ in range(batches):
            assert consumer.poll(30) is not None
        return Counter(consumer.storage_requests)


def test_small_batches_with_many_readers(run, counting):
    """240 Batches of 64 KiB, and five readers of each as a whole."""
    broker, brokers = run()
    send(broker.address, 960, 15_000, batch_bytes="64KiB")
    asked, values = meter(broker)
    load = modelled(values, batch_bytes=64 << 10)
    batches, readers = round(values["memq_batches_published_total"]), counting()

    own = sum((read_all(broker.address, readers, batches) for _ in range(5)), Counter())

    counted = brokers.count() | {"get": readers.count()["get"]}
    assert (
        off({"put": asked["put"], "get": own["get"]}, {k: counted[k] for k in ("put", "get")}) == {}
    )
    assert off({"put": values["memq_uploads_attempted_total"]}, {"put": counted["put"]}) == {}
    gets = 5 * load.batches_per_second * whole_gets(size_of(load)) * (1 + load.hedges)
    puts = load.batches_per_second * (1 + load.hedges)
    assert off({"put": puts, "get": gets}, {k: counted[k] for k in ("put", "get")}) == {}
    # A second attempt that has ended as well carried its bytes too.
    assert off(own, {"get_bytes": 5 * values["memq_bytes_published_total"]}) == {}


@pytest.mark.parametrize(("message_bytes", "messages"), [(1_500_000, 56), (400_000, 208)])
def test_large_batches_read_by_ranges(run, counting, message_bytes, messages):
    """Batches of 20 MiB, which Spark reads Message by Message, and a consumer in three parts."""
    broker, brokers = run()
    send(broker.address, messages, message_bytes, batch_bytes="20MiB")
    asked, values = meter(broker)
    load = modelled(values, batch_bytes=20 * MIB)
    batches, whole, ranged = round(values["memq_batches_published_total"]), counting(), counting()

    own = read_all(broker.address, whole, batches)
    rows = read(broker.address, storageOptions=ranged.text)

    assert rows.num_rows == messages

    count, size_bytes = load.batches_per_second, size_of(load)
    assert off({"put": asked["put"]}, {"put": brokers.count()["put"]}) == {}
    assert off({"get": own["get"]}, {"get": whole.count()["get"]}) == {}
    one = size_bytes / load.message_bytes
    more = 1 + load.hedges
    for counted, gets in ((whole, whole_gets(size_bytes)), (ranged, ranged_gets(size_bytes, one))):
        assert off({"get": count * gets * more}, {"get": counted.count()["get"]}) == {}


def test_retention_deletes_and_scans(run):
    """What a broker asks by itself: listings, deletions, and whether the store is there."""
    broker, brokers = run(retention_interval="200ms", orphan_interval="2s")
    send(
        broker.address,
        120,
        15_000,
        batch_bytes="17000B",
        retention="10s",
        dedup_window="10s",
        upload_deadline="5s",
    )
    with AdminClient(broker.address) as admin:
        while any(each.start < each.end for each in admin.offsets(TOPIC)):
            pass  # until retention has taken all
    asked, counted = settled(broker, brokers)

    assert counted["put"] >= 120
    assert counted["delete"] > 0
    assert counted["list"] > 0
    assert off(asked, counted) == {}


def test_a_scan_lists_a_thousand_objects_a_request(s3_server, bucket, counting):
    """The model of a scan is what a listing of all objects asks for."""
    proxy, folder = counting(), s3_server.folder / "buckets" / bucket / "some"
    folder.mkdir(parents=True)
    for objects in (0, 1, 999, 2_300):
        for number in range(objects):
            (folder / f"{number:04d}").touch()
        storage = ObjectStorage(f"s3://{bucket}", options=proxy.options)
        before = proxy.count()["list"]

        assert len([*storage.list("")]) == objects

        counted = proxy.count()["list"] - before
        assert (storage.requests["list"], list_requests(objects)) == (counted, counted)
