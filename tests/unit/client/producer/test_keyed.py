"""Records are placed by their key, within the memory that a producer has."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.client.producer.accumulator import ENVELOPE_BYTES, MAX_WAIT_S
from memq.client.producer.keyed import KeyedAccumulator, check_key_column, open_message_bytes
from memq.client.producer.memory import ByteBudget
from memq.client.producer.tables import to_batches
from memq.core.format.message import open_message
from memq.core.format.schema import DEFAULT_SCHEMA
from memq.core.keys import partition_of
from memq.errors import ClosedError, ConfigError, InvalidRequestError
from tests.unit.client.producer import test_accumulator as accumulators

MESSAGE_BYTES = 4_096


class Rig(accumulators.Rig):
    """A keyed accumulator with a clock of its own; sealed Messages gather in `sealed`."""

    def __init__(self, partitions=4, *, buffer_bytes=1 << 20, most=1 << 16, **options):
        def make(write_partition):
            accumulators.Rig.__init__(
                self,
                buffer_bytes=buffer_bytes,
                message_bytes=open_message_bytes(MESSAGE_BYTES, buffer_bytes, partitions),
                max_message_bytes=min(most, buffer_bytes // 2),
                write_partition=write_partition,
                one_of_many=True,
                **{"budget": self.budget, "sealed": self.sealed} | options,
            )
            return self.accumulator

        self.budget, self.sealed = ByteBudget(buffer_bytes), []
        self.accumulator = KeyedAccumulator("key", make, partitions, MESSAGE_BYTES)
        self.write = self.accumulator.write

    def settle(self):
        """All that is sealed is acked."""
        for message in self.sealed:
            self.budget.give(message.size_bytes)

    def placed(self):
        """Keys and values of each write partition, in the order of its Messages."""
        self.accumulator.seal()
        found = {}
        for message in self.sealed:
            for row in open_message(message.body, DEFAULT_SCHEMA).to_pylist():
                found.setdefault(message.write_partition, []).append((row["key"], row["value"]))
        return found

    def write_table(self, table):
        """Write a table, as a producer does."""
        message_bytes, most = self.accumulator.limits_bytes
        for batch in to_batches(
            table,
            DEFAULT_SCHEMA,
            "t",
            now_us=1,
            message_bytes=message_bytes,
            max_message_bytes=most,
            spread=self.accumulator.spread,
        ):
            assert self.accumulator.write_batch(batch, "default") is not None


def expected(records, partitions):
    """Where records are to be."""
    found = {}
    for key, value in records:
        place = None if key is None else partition_of(bytes(key), partitions)
        found.setdefault(place, []).append((key, value))
    return found


KEYS = [b"", *(b"%d" % number for number in range(20))]
RECORDS = st.lists(
    st.tuples(st.none() | st.sampled_from(KEYS), st.binary(max_size=9)),
    max_size=200,
)


@given(RECORDS, RECORDS, st.integers(1, 9))
def test_rows_are_placed_like_records(before, rows, partitions):
    """A table's rows go where records with their keys go, and come after what was written."""
    rig = Rig(partitions)
    for key, value in before:
        rig.write(value, key)
    keys, values = zip(*rows, strict=True) if rows else ((), ())
    rig.write_table(
        pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
    )

    assert rig.placed() == expected([*before, *rows], partitions)
    most = (1 << 16) - ENVELOPE_BYTES
    assert rig.accumulator.limits_bytes == (MESSAGE_BYTES - ENVELOPE_BYTES, most)


@pytest.mark.parametrize("key", [b"k1", b""])
def test_keys_are_any_bytes(key):
    """A key is what it is made of, however it is given; text is refused with a hint."""
    rig = Rig(8)
    for given_key in (key, bytearray(key), memoryview(key)):
        rig.write(b"v", given_key)
    assert rig.placed() == {partition_of(key, 8): [(key, b"v")] * 3}
    with pytest.raises(InvalidRequestError, match=r"encode it first"):
        rig.write(b"v", "k1")


@pytest.mark.parametrize("size", [10, 5_000, 40_000])
def test_writing_never_waits_for_what_only_it_could_end(size):
    """Without linger, open Messages leave room for others, however large the records are."""
    rig = Rig(10, linger_s=None, buffer_bytes=256 << 10)
    for number in range(1_000):
        if rig.write(b"v" * size, b"%d" % number) is None:
            rig.settle()
            rig.sealed.clear()
            assert rig.write(b"v" * size, b"%d" % number) is not None
    assert rig.budget.used_bytes <= rig.budget.limit_bytes


def test_linger_ends_each_message():
    """Each open Message is sealed after its own linger time, and its deadline counts from then."""
    rig = Rig(4)
    rig.write(b"v", b"a")
    rig.now += 0.006
    rig.write(b"v")
    assert rig.accumulator.tick(may_seal=True) == pytest.approx(0.004)
    rig.now += 0.005
    assert rig.accumulator.tick(may_seal=True) > 0
    assert [message.written_s for message in rig.sealed] == [rig.now]
    rig.now += 0.006
    assert rig.accumulator.tick(may_seal=True) is None
    assert len(rig.sealed) == 2
    rig.write(b"v", b"a")
    assert rig.accumulator.tick(may_seal=False) is not None
    rig.now += MAX_WAIT_S
    assert rig.accumulator.tick(may_seal=False) is None


def test_all_of_it_ends():
    """What is dropped, sealed or ended is so for every write partition."""
    rig = Rig(4)
    deliveries = [rig.write(b"v", b"%d" % number) for number in range(20)]
    rig.accumulator.drop_open(ClosedError("dropped"))
    assert all(str(delivery.exception(0)) == "dropped" for delivery in deliveries)
    assert (rig.budget.used_bytes, rig.sealed) == (0, [])
    rig.write(b"v", b"a")
    rig.write(b"v")
    rig.accumulator.end(ClosedError("over"))
    assert len(rig.sealed) == 2
    for key in (b"a", None):
        with pytest.raises(ClosedError, match="over"):
            rig.write(b"v", key)


def test_open_messages_share_half_of_the_buffer():
    """A Message grows to what is its share; a buffer that is too small is refused at the start."""
    assert open_message_bytes(1 << 20, 64 << 20, 31) == 1 << 20
    assert open_message_bytes(1 << 20, 64 << 20, 255) == 128 << 10
    assert open_message_bytes(1_024, 1 << 20, 255) == 1_024
    with pytest.raises(ConfigError, match="at least 2097152"):
        open_message_bytes(1 << 20, (2 << 20) - 512, 255)
    assert open_message_bytes(1 << 20, 2 << 20, 255) == 4_096


TYPED = pa.schema([("id", pa.int64()), ("city", pa.utf8()), ("fare", pa.float64())])


@pytest.mark.parametrize(
    ("column", "schema", "problem"),
    [
        ("key", DEFAULT_SCHEMA, None),
        ("value", DEFAULT_SCHEMA, "choose none or one of key"),
        ("city", TYPED, None),
        ("id", TYPED, None),
        ("fare", TYPED, "choose none or one of id, city"),
        ("key", TYPED, "choose none or one of id, city"),
        ("x", pa.schema([("x", pa.float64())]), "it has no column of texts"),
    ],
)
def test_a_column_that_is_no_key_is_refused(column, schema, problem):
    """What cannot place records is an error at the start that names what can."""
    if problem is None:
        check_key_column(column, schema, "t")
    else:
        with pytest.raises(ConfigError, match=problem):
            check_key_column(column, schema, "t")
