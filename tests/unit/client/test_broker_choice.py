"""Which broker is asked where several would do."""

from collections import Counter

import pytest

from memq.client.broker_choice import REST_S, BrokerChoice
from memq.core.wire.messages import BrokerInfo
from memq.runtime.system import Runtime


class Client:
    """A choice with a clock and chance of its own."""

    def __init__(self, zone, *brokers, chance=0.0):
        self.now = 100.0
        self.chance = chance
        self.choice = BrokerChoice(
            zone, Runtime(mono_s=lambda: self.now, random=lambda: self.chance)
        )
        self.choice.known(brokers)

    def reader(self, serving="serves"):
        return self.choice.reader(serving)


def broker(address, zone="", *, reads=False):
    return BrokerInfo(id=address, address=address, zone=zone, reads=reads)


BROKERS = (
    broker("serves", "b"),
    broker("far reads", "b", reads=True),
    broker("near", "a"),
    broker("near reads", "a", reads=True),
)


@pytest.mark.parametrize(
    ("zone", "brokers", "serving", "expected"),
    [
        ("a", BROKERS, "serves", "near reads"),
        ("a", BROKERS[:3], "serves", "near"),
        ("c", BROKERS, "serves", "far reads"),
        ("", BROKERS, "serves", "far reads"),
        ("c", (BROKERS[2], BROKERS[0]), "serves", "serves"),
        ("", (broker("x"), broker("serves")), "serves", "serves"),
        ("a", (broker("x"), broker("serves")), "serves", "serves"),
        ("a", (), "serves", "serves"),
        ("", (broker("x"),), "", "x"),
        ("", (), "", ""),
    ],
)
def test_reader_is_the_best_there_is(zone, brokers, serving, expected):
    """In the client's zone before elsewhere, there in the role of reading before others."""
    client = Client(zone, *brokers)
    assert client.reader(serving) == expected
    assert list(client.choice.near()) == [
        each.address for each in brokers if each.zone == zone != ""
    ]


def test_equal_ones_are_chosen_by_chance_and_kept():
    """Clients spread over equal readers; each stays with its own."""
    readers = [broker(str(number), "a", reads=True) for number in range(4)]
    found = Counter(Client("a", *readers, chance=n / 100).reader() for n in range(100))
    assert found == {"0": 25, "1": 25, "2": 25, "3": 25}
    client = Client("a", *readers, chance=0.9)
    assert client.reader() == "3"
    client.chance = 0.0
    assert client.reader() == "3"


def test_another_reader_when_one_fails():
    """It fails over within the zone first, then out of it, and back when the rest is over."""
    client = Client("a", *BROKERS)
    assert client.reader() == "near reads"
    client.choice.failed("near reads")
    assert client.reader() == "near"
    client.choice.failed("near")
    assert client.reader() == "far reads"
    client.choice.failed("far reads")
    assert client.reader() == "serves"
    client.now += REST_S - 1
    assert client.reader() == "serves"
    client.now += 1
    assert client.reader() == "near reads"


def test_when_all_have_failed_the_first_to_fail_is_asked():
    """Nobody is given up for good."""
    client = Client("", broker("serves"), broker("x"))
    client.choice.failed("serves")
    assert client.reader() == "x"
    client.choice.failed("x")
    assert client.reader() == "serves"
    client.choice.failed("serves")
    assert client.reader() == "x"
    assert client.choice.first(["serves"]) == "serves"
