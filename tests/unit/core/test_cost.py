"""The model of costs: its formulas, what it refuses, and what moves it."""

import random
import tomllib
from dataclasses import replace
from importlib.resources import files

import msgspec
import pytest

from memq.core.cost import (
    LEAST,
    MONTH_S,
    PAGE_KEYS,
    PART_BYTES,
    RANGE_BYTES,
    WHOLE_BYTES,
    WORKLOAD_OPTIONS,
    WORST_HEDGES,
    Prices,
    Workload,
    brokers,
    kafka_bill,
    memq_bill,
    ranged_gets,
    sensitivity,
    total,
    whole_gets,
    worst,
)
from memq.core.options import defaults
from memq.core.units import MIB
from memq.core.write_partition import UploadBatch
from memq.errors import ConfigError
from memq.runtime import hedging
from memq.spark import worker
from memq.storage import object_store
from tests.unit.core.test_write_partition import now, processor, write

TABLE = tomllib.loads(files("memq.core").joinpath("prices.toml").read_text())
PRICES = msgspec.convert(TABLE, Prices)


def workload(mb_per_second, **given):
    """One with the defaults of the command."""
    return Workload(**defaults(WORKLOAD_OPTIONS) | {"mb_per_second": mb_per_second} | given)


LOAD = workload(30, readers=3.0)


def size_of(load):
    """Bytes of a Batch."""
    return load.mb_per_second * 1e6 / load.batches_per_second


def dollars(lines, item):
    return next(line.dollars for line in lines if line.item == item)


def test_the_model_knows_the_limits_of_the_code():
    """What it cannot import, as it is of the core, is what the code says."""
    assert object_store.PART_BYTES == PART_BYTES
    assert object_store.PARTS_AT_A_TIME * object_store.PART_BYTES == WHOLE_BYTES
    assert object_store.PAGE_KEYS == PAGE_KEYS
    assert worker.READ_BYTES == RANGE_BYTES
    assert hedging.EXTRA_SHARE == WORST_HEDGES


@pytest.mark.parametrize("messages_per_second", [0.5, 5, 40, 400])
def test_batches_are_as_many_as_a_write_partition_makes(messages_per_second):
    """Within 5 % of the state machine, for Messages at random times, sealed by age or by bytes."""
    chance, at_s, made = random.Random(7), 0.0, 0
    made_by = processor(batch_bytes="64KiB", batch_age="200ms", ring_slots=64)
    body = bytes(1_000)
    for sequence in range(8_000):
        at_s += chance.expovariate(messages_per_second)
        due_ms = made_by.seal_due_ms()
        if due_ms is not None and due_ms <= at_s * 1000:
            made_by.tick(now(due_ms))
        message = write(sequence, records=1, acks=0)
        made_by.write(message, body, 0, None, now(int(at_s * 1000)))
        for effect in made_by.take_effects():
            if isinstance(effect, UploadBatch):
                made += 1
                made_by.stored(effect.batch)
                made_by.published([effect.batch], [made], now(int(at_s * 1000)))
                made_by.take_effects()
    rate = messages_per_second / 1_000
    load = workload(rate, batch_bytes=64 << 10, message_bytes=1_000)

    assert load.batches_per_second * at_s == pytest.approx(made, rel=0.05)


def test_full_batches_hold_whole_messages():
    """A Message that has no room begins another Batch: seven of 1.1 MiB fit into 8 MiB."""
    load = workload(1_000, message_bytes=int(1.1 * MIB))

    assert size_of(load) == 7 * load.message_bytes


@pytest.mark.parametrize(
    ("size_bytes", "gets"),
    [(1, 1), (8 * MIB, 1), (12 * MIB - 1, 1), (20 * MIB + 1, 3), (64 * MIB, 8), (65 * MIB, 9)],
)
def test_gets_of_a_whole_batch(size_bytes, gets):
    """One for each 8 MiB, about; beyond 64 MiB one more asks where the object ends."""
    assert whole_gets(size_bytes) == gets
    if size_bytes <= WHOLE_BYTES:
        assert len(object_store._cut(0, size_bytes)) == gets


def test_gets_of_a_range():
    """The index, and then Messages together up to 1 MiB."""
    assert ranged_gets(8 * MIB, 8) == 9
    assert ranged_gets(MIB, 1_000) == 2
    assert ranged_gets(4_000_000, 10) == 6


def test_the_bill_is_what_the_requests_cost():
    """Puts and gets of each Batch, hedged, and lists, each at its price; nothing costs nothing."""
    found = {line.item: line for line in memq_bill(LOAD, PRICES)}
    batches = LOAD.batches_per_second * MONTH_S
    puts, gets, lists = (found[f"{kind} requests"] for kind in ("PUT", "GET", "LIST"))

    assert puts.amount == pytest.approx(batches * 1.03)
    assert gets.amount == pytest.approx(batches * 1.03 * 3)
    assert lists.amount == pytest.approx(batches * 7 / 30.4 / 1_000 * 3 * 30.4, rel=0.001)
    assert puts.dollars == pytest.approx(puts.amount * 5e-6)
    assert gets.dollars == pytest.approx(gets.amount * 4e-7)
    assert lists.dollars == pytest.approx(lists.amount * 5e-6)
    free = msgspec.structs.replace(PRICES, put_per_1000=0)
    assert dollars(memq_bill(LOAD, free), "PUT requests") == 0


def test_idle_brokers_ask_whether_the_store_is_there():
    """Each once a second, when nothing else is asked."""
    idle = workload(0.001, readers=0.0)

    (gets,) = [line.amount for line in memq_bill(idle, PRICES) if line.item == "GET requests"]
    assert gets == pytest.approx(LEAST * MONTH_S, rel=0.001)


def test_small_batches_cost_more():
    """Half the size is twice the requests, and the bill says so."""
    small = replace(LOAD, batch_bytes=LOAD.batch_bytes // 2, batch_age_ms=60_000)
    large = replace(LOAD, batch_age_ms=60_000)
    puts = [dollars(memq_bill(load, PRICES), "PUT requests") for load in (small, large)]

    assert puts[0] == pytest.approx(2 * puts[1])


def test_kafka_is_cheaper_for_a_little_data_and_dearer_for_much():
    """A cluster of MemQ has a Kafka besides: at 1 MB/s a tuned Kafka alone costs less."""
    for rate, kafka_wins in ((1, True), (30, False), (1_000, False)):
        load = replace(LOAD, mb_per_second=rate)
        kafka = total(kafka_bill(load, PRICES, tuned=True))
        assert (kafka < total(memq_bill(load, PRICES))) is kafka_wins
        assert kafka < total(kafka_bill(load, PRICES, tuned=False))


def test_an_embedded_queue_is_one_broker():
    """It has no Kafka to pay for, and a load that is too much for it is refused."""
    alone = replace(LOAD, embedded=True)

    assert brokers(alone, PRICES) == 1
    assert brokers(LOAD, PRICES) == LEAST
    assert total(memq_bill(alone, PRICES)) < total(memq_bill(LOAD, PRICES))
    with pytest.raises(ConfigError, match=r"need 18 brokers, and an embedded queue has one"):
        memq_bill(replace(alone, mb_per_second=1_000), PRICES)


def test_the_worst_case_costs_more_than_any_single_input_does_in_it():
    """All that it changes, at once; a worst case of the worst case is no cheaper."""
    usual, high = total(memq_bill(LOAD, PRICES)), total(memq_bill(worst(LOAD), PRICES))

    assert usual < total(memq_bill(replace(LOAD, zone_share=1.0), PRICES)) < high
    assert high <= total(memq_bill(worst(worst(LOAD)), PRICES))


def test_sensitivity_names_each_input_that_matters():
    """Twice the data matters most; each figure is the difference that the changed load makes."""
    lines = sensitivity(LOAD, PRICES)
    found, usual = {line.item: line.dollars for line in lines}, total(memq_bill(LOAD, PRICES))

    for item, changed in (
        ("mb_per_second doubled", replace(LOAD, mb_per_second=60.0)),
        ("zone_share doubled", replace(LOAD, zone_share=1.0)),
        ("readers halved", replace(LOAD, readers=1.5)),
        ("topics halved", LOAD),  # fewer there are not
    ):
        assert found[item] == pytest.approx(total(memq_bill(changed, PRICES)) - usual)
    assert lines[0].item == "mb_per_second doubled"
    assert [abs(line.dollars) for line in lines] == sorted(map(abs, found.values()), reverse=True)


@pytest.mark.parametrize("rate", [0.001, 1, 1e3, 1e6, 1e7])
def test_every_line_is_a_cost(rate):
    """From a kilobyte a second to ten terabytes no line is negative, and more data costs more."""
    load = replace(LOAD, mb_per_second=rate)
    for bill in (memq_bill(load, PRICES), kafka_bill(load, PRICES, tuned=True)):
        assert min(line.dollars for line in bill) >= 0
    assert total(memq_bill(replace(load, mb_per_second=rate * 2), PRICES)) >= total(
        memq_bill(load, PRICES)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"put_per_1000": -1}, ">= 0.0 - at `$.put_per_1000`"),
        ({"put_per_1000": "5"}, "got `str` - at `$.put_per_1000`"),
        ({"put_per_1000": True}, "got `bool` - at `$.put_per_1000`"),
        ({"put_per_1000": float("nan")}, "at `$.put_per_1000`"),
        ({"put_per_1000": float("inf")}, "<= 1000000000.0 - at `$.put_per_1000`"),
        ({"date": 5}, "Expected `str`, got `int` - at `$.date`"),
        ({"tax": 1}, "unknown field `tax`"),
        ({"broker_vcpus": 0}, "> 0.0 - at `$.broker_vcpus`"),
    ],
)
def test_prices_that_are_none_are_refused(change, message):
    """The error names the price, and what is expected."""
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert(TABLE | change, Prices)
    assert message in str(raised.value)


def test_a_missing_price_is_refused():
    """No price is taken for nothing."""
    table = {name: value for name, value in TABLE.items() if name != "get_per_1000"}
    with pytest.raises(msgspec.ValidationError, match="missing required field `get_per_1000`"):
        msgspec.convert(table, Prices)
