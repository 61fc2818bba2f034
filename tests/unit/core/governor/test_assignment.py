import math
from collections import Counter, defaultdict
from math import fsum

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.governor.assignment import (
    IDLE_SHARE,
    PAYS_SHARE,
    BrokerResources,
    PartitionLoad,
    assign,
    rebalance,
)
from memq.errors import InvalidRequestError

TOLERANCE = 0.05
NO_LIMIT = 1_000_000


def brokers_of(count, *, zones=1, racks=1, capacity=1.0):
    """Brokers that share zones and racks evenly."""
    return [
        BrokerResources(f"b{n:03}", capacity, f"z{n % zones}", f"r{n // zones % racks}")
        for n in range(count)
    ]


def topic(name, partitions, load=None):
    """A topic's write partitions, all with one load."""
    return [PartitionLoad(name, number, load) for number in range(partitions)]


def topics(count, partitions, load=None):
    """Topics that are all alike."""
    return [each for n in range(count) for each in topic(f"t{n:03}", partitions, load)]


def weights_of(partitions):
    """What each counts: its load, the mean for one that is not known, something for an idle one."""
    known = [each.bytes_per_s for each in partitions if each.bytes_per_s is not None]
    mean = (fsum(known) / len(known) if known else 0) or 1.0
    idle = max(mean * IDLE_SHARE, 0.001)
    return {
        each.partition: max(mean if each.bytes_per_s is None else each.bytes_per_s, idle)
        for each in partitions
    }


def loads_of(brokers, weights, assignment):
    """The load of each accepting broker."""
    loads = {each.id: 0.0 for each in brokers if each.accepting}
    for key, owner in sorted(assignment.items()):
        if owner in loads:
            loads[owner] += weights[key]
    return loads


def shares_of(brokers, weights):
    """What each accepting broker should carry."""
    room = fsum(each.capacity for each in brokers if each.accepting)
    total = fsum(weights.values())
    return {each.id: total * each.capacity / room for each in brokers if each.accepting}


def zones_of(brokers, assignment, name):
    """How many write partitions of a topic each zone has."""
    zone = {each.id: each.zone for each in brokers}
    return Counter(zone[owner] for (found, _), owner in assignment.items() if found == name)


some_brokers = st.lists(
    st.builds(
        BrokerResources,
        id=st.sampled_from([f"b{n}" for n in range(12)]),
        capacity=st.sampled_from([1.0, 1.0, 1.0, 0.5, 2.0, 3.3]),
        zone=st.sampled_from(["", "a", "b", "c"]),
        rack=st.sampled_from(["", "1", "2"]),
        accepting=st.sampled_from([True, True, True, False]),
    ),
    max_size=10,
    unique_by=lambda each: each.id,
)
some_partitions = st.lists(
    st.builds(
        PartitionLoad,
        st.sampled_from(["s", "t", "u", "v"]),
        st.integers(0, 15),
        st.one_of(st.none(), st.sampled_from([0.0, 1.0]), st.floats(0, 1e9)),
    ),
    max_size=40,
    unique_by=lambda each: each.partition,
)


@st.composite
def clusters(draw, brokers=some_brokers):
    """Brokers, write partitions, and owners of some: also of brokers that are not there."""
    some, partitions = draw(brokers), draw(some_partitions)
    names = st.sampled_from([each.id for each in some] + ["gone", ""])
    present = {each.partition: draw(names) for each in partitions if draw(st.booleans())}
    return some, partitions, present


# -- assign ---------------------------------------------------------------------------------


@given(clusters())
def test_every_write_partition_has_one_accepting_owner(cluster):
    """With none that accepts, the homeless stay so; nothing but what is homeless moves."""
    brokers, partitions, present = cluster
    found = assign(brokers, partitions, present)
    accepting = {each.id for each in brokers if each.accepting}
    assert found.keys() == {each.partition for each in partitions}
    assert set(found.values()) <= (accepting or {""})
    kept = {key: owner for key, owner in present.items() if owner in accepting}
    assert found | kept == found


@given(clusters(), st.randoms())
def test_the_order_of_the_input_does_not_matter(cluster, random):
    """The same brokers and write partitions in another order give the same, moves too."""
    brokers, partitions, present = cluster
    shuffled = [random.sample(each, len(each)) for each in (brokers, partitions)]
    turned = dict(random.sample(sorted(present.items()), len(present)))
    assert assign(*shuffled, turned) == assign(brokers, partitions, present)
    limits = {"max_moves": 5, "tolerance": TOLERANCE}
    moves = rebalance(brokers, partitions, present, **limits)
    assert rebalance(*shuffled, turned, **limits) == moves


def homeless_of(brokers, partitions, present):
    """Loads, shares and what is homeless; None where a write partition is larger than a share."""
    weights = weights_of(partitions)
    shares = shares_of(brokers, weights)
    homeless = {key: w for key, w in weights.items() if present.get(key, "") not in shares}
    if not shares or not homeless or max(weights.values()) > max(shares.values()):
        return None
    return weights, shares, loads_of(brokers, weights, present), homeless


def short_of(shares, loads, homeless):
    """What each broker lacks that is below its share by more than the largest that is homeless."""
    least = max(homeless.values()) * (1 + 1e-6)
    return {b: shares[b] - loads[b] for b in shares if shares[b] - loads[b] > least}


@given(clusters())
def test_nobody_is_given_more_when_it_has_its_share(cluster):
    """Before the last that it got, each was below its share, or what that is without short ones."""
    brokers = cluster[0]
    if (known := homeless_of(*cluster)) is None:
        return
    weights, shares, before, homeless = known
    short = short_of(shares, before, homeless)
    full = dict(shares)
    if sum(short.values()) > sum(homeless.values()) * (1 + 1e-6):
        capacity = {each.id: each.capacity for each in brokers}
        others = [name for name in shares if name not in short]
        load = sum(before[name] for name in others) + sum(homeless.values())
        level = load / sum(capacity[name] for name in others)
        full = {name: max(level * capacity[name], shares[name]) for name in shares}
    found = assign(*cluster)
    loads = loads_of(brokers, weights, found)
    for owner in {found[key] for key in homeless}:
        given_last = min(weight for key, weight in homeless.items() if found[key] == owner)
        assert loads[owner] - given_last < full[owner] * (1 + 1e-6)


@given(clusters())
def test_nobody_is_left_far_below_its_share_when_there_is_enough(cluster):
    """When what is homeless can lift those that are a write partition below, none is in the end."""
    brokers = cluster[0]
    if (known := homeless_of(*cluster)) is None:
        return
    weights, shares, before, homeless = known
    if sum(short_of(shares, before, homeless).values()) <= sum(homeless.values()) * (1 - 1e-6):
        loads = loads_of(brokers, weights, assign(*cluster))
        assert short_of(shares, loads, homeless) == {}


@pytest.mark.parametrize("capacities", [[1.0], [1.0, 2.5, 0.4]])
def test_a_new_cluster_is_within_one_write_partition_of_even(capacities):
    """From nothing, each broker is within 5 % of its share or within one write partition."""
    brokers = [
        msgspec.structs.replace(each, capacity=capacities[n % len(capacities)])
        for n, each in enumerate(brokers_of(30, zones=3, racks=2))
    ]
    partitions = [
        each._replace(bytes_per_s=1.0 + n % 17) for n, each in enumerate(topics(77, 13, 1.0))
    ]
    weights = weights_of(partitions)
    found = loads_of(brokers, weights, assign(brokers, partitions, {}))
    for name, share in shares_of(brokers, weights).items():
        assert abs(found[name] - share) <= max(0.05 * share, *weights.values())


def test_one_that_is_too_large_does_not_spoil_the_rest():
    """A write partition larger than a share has a broker alone, and the others share the rest."""
    partitions = [*topics(10, 9, 1.0), PartitionLoad("large", 0, 1_000.0)]
    found = assign(brokers_of(10), partitions, {})
    counts = Counter(found.values())
    assert counts[found["large", 0]] == 1
    assert sorted(counts.values()) == [1] + [10] * 9


def test_a_topic_is_spread_over_racks_and_brokers_of_a_zone():
    """Two of a topic are in two racks; four of it on four brokers."""
    brokers = brokers_of(8, zones=1, racks=2)
    found = assign(brokers, topics(6, 4), {})
    rack = {each.id: each.rack for each in brokers}
    for n in range(6):
        owners = [owner for (name, _), owner in found.items() if name == f"t{n:03}"]
        assert len(set(owners)) == 4
        assert Counter(rack[owner] for owner in owners) == {"r0": 2, "r1": 2}


def test_a_new_topic_does_not_go_to_the_one_empty_broker_alone():
    """What joins is not given all of a new topic, so that losing it would cost the whole topic."""
    brokers = brokers_of(10)
    present = assign(brokers[:9], topics(9, 5), {})
    found = assign(brokers, [*topics(9, 5), *topic("new", 4)], present)
    assert len({owner for (name, _), owner in found.items() if name == "new"}) == 4


@pytest.mark.parametrize(
    "fields", [("", 1.0), ("b", 0), ("b", -1), ("b", math.nan), ("b", math.inf)]
)
def test_a_broker_that_makes_no_sense_is_refused(fields):
    """An empty id means that nobody owns something; of a capacity the error says what may be."""
    with pytest.raises(InvalidRequestError, match=r"no id|of broker 'b': must be above 0"):
        BrokerResources(*fields)


# -- rebalance ------------------------------------------------------------------------------


def out_of_tolerance(brokers, weights, assignment, tolerance=TOLERANCE):
    """Brokers that are, for write partitions of which none is larger than a share."""
    shares, loads = shares_of(brokers, weights), loads_of(brokers, weights, assignment)
    return [b for b in shares if abs(loads[b] / shares[b] - 1) > tolerance]


def unevenness(brokers, weights, assignment):
    """The sum of load² / capacity."""
    loads = loads_of(brokers, weights, assignment)
    return fsum(loads[each.id] ** 2 / each.capacity for each in brokers if each.accepting)


@given(clusters(), st.integers(0, 6))
def test_no_more_is_moved_than_allowed_and_only_to_who_accepts(cluster, max_moves):
    """Each move is to another broker, which accepts; what is homeless is left alone.

    What a rebalancing without limit leaves is left alone by the next one.
    """
    brokers, partitions, present = cluster
    limits = {"max_moves": NO_LIMIT, "tolerance": TOLERANCE}
    after = present | rebalance(brokers, partitions, present, **limits)
    assert rebalance(brokers, partitions, after, **limits) == {}
    moves = rebalance(brokers, partitions, present, max_moves=max_moves, tolerance=TOLERANCE)
    accepting = {each.id: each.accepting for each in brokers}
    assert len(moves) <= max_moves
    for key, owner in moves.items():
        assert accepting[owner]
        assert present[key] in accepting
        assert present[key] != owner


@given(clusters(), st.integers(1, 3))
def test_rounds_come_to_an_end(cluster, max_moves):
    """A few at a time, it empties those that do not accept and then gets more even, and ends."""
    brokers, partitions, present = cluster
    limits = {"max_moves": max_moves, "tolerance": TOLERANCE}
    for _ in range(20 * len(partitions) + 1):
        moves = rebalance(brokers, partitions, present, **limits)
        if not moves:
            break
        present = present | moves
    assert not moves
    accepting = {each.id: each.accepting for each in brokers}
    if any(accepting.values()):
        assert all(accepting.get(owner, True) for owner in present.values())


@given(clusters())
def test_each_move_makes_it_more_even(cluster):
    """Once nobody is to be emptied, the sum of load² / capacity gets less with each move."""
    brokers, partitions, present = cluster
    brokers = [msgspec.structs.replace(each, accepting=True) for each in brokers]
    if not brokers or not partitions:
        return
    present = assign(brokers, partitions, present)
    weights = weights_of(partitions)
    shares = shares_of(brokers, weights)
    if any(weight > min(shares.values()) for weight in weights.values()):
        return
    while moves := rebalance(brokers, partitions, present, max_moves=1, tolerance=TOLERANCE):
        assert out_of_tolerance(brokers, weights, present)
        after = present | moves
        assert unevenness(brokers, weights, after) < unevenness(brokers, weights, present)
        present = after
    for name in out_of_tolerance(brokers, weights, present):
        assert not paying(brokers, weights, present, name)


def paying(brokers, weights, assignment, name):
    """Moves from a broker above its share, or to one below, that gain half of what they move."""
    loads, shares = loads_of(brokers, weights, assignment), shares_of(brokers, weights)
    capacity = {each.id: each.capacity for each in brokers}
    above = loads[name] > shares[name]
    return [
        (key, target)
        for key, source in assignment.items()
        for target in capacity
        if (source if above else target) == name
        and (loads[target] + weights[key]) / capacity[target]
        < (loads[source] - PAYS_SHARE * weights[key]) / capacity[source] * (1 - 1e-6)
    ]


def test_evening_out_keeps_a_topic_in_its_zones():
    """Where two moves gain alike, the one is made that leaves a topic's zones as they are."""
    brokers = brokers_of(6, zones=3)
    partitions = topics(20, 3, 1.0)
    present = assign(brokers, partitions, {})
    first = [key for key, owner in present.items() if owner == "b000"]
    loads = [
        each._replace(bytes_per_s=2.0 if each.partition in first else 1.0) for each in partitions
    ]
    moves = rebalance(brokers, loads, present, max_moves=NO_LIMIT, tolerance=0.2)
    after = present | moves
    spread = defaultdict(int)
    for n in range(20):
        spread[len(zones_of(brokers, after, f"t{n:03}"))] += 1
    assert moves
    assert spread[3] >= 18
