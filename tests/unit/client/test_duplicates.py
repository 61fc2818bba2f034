from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memq.client.duplicates import DuplicateWindow
from memq.core.format.index import IndexEntry


def message(sequence, *, producer="p", epoch=0, crc=None):
    """An index entry; its CRC follows from its sequence unless it is given."""
    crc = 1000 + sequence if crc is None else crc
    return IndexEntry(producer, epoch, sequence, 0, 8, 1, 0, 0, crc)


def test_first_sight_is_no_duplicate():
    """Messages that were never handed out pass."""
    window = DuplicateWindow()
    assert window.find((0, 0), 0, [message(0), message(1), message(0, producer="q")]) == []
    assert window.find((0, 1), 0, [message(2), message(0, epoch=1)]) == []
    assert repr(window) == "<DuplicateWindow [4 runs of 2 Batches]>"


def test_same_name_elsewhere_is_a_duplicate():
    """A Message at another offset or partition is a duplicate; its neighbours are not."""
    window = DuplicateWindow()
    window.find((0, 0), 0, [message(0), message(1), message(2)])
    assert window.find((0, 1), 0, [message(3), message(1)]) == [1]
    assert window.find((1, 0), 0, [message(2), message(4), message(0)]) == [0, 2]
    assert window.find((1, 1), 0, [message(3)]) == [0]


def test_same_name_in_one_batch():
    """Of a Message that is in a Batch twice the second is a duplicate."""
    window = DuplicateWindow()
    assert window.find((0, 0), 0, [message(5), message(6), message(5)]) == [2]


def test_other_write_partition_is_another_message():
    """Sequences count for each write partition."""
    window = DuplicateWindow()
    window.find((0, 0), 0, [message(0)])
    assert window.find((0, 1), 1, [message(0)]) == []


def test_reading_again_is_no_duplicate():
    """After a seek back the same Batches pass again, and their duplicates are duplicates again."""
    window = DuplicateWindow()
    batches = {(0, 0): [message(0), message(1)], (0, 1): [message(1), message(2)]}
    for _ in range(3):
        assert [window.find(place, 0, found) for place, found in batches.items()] == [[], [0]]
    assert window.find((0, 1), 0, batches[0, 1]) == [0]


def test_other_content_under_an_old_name_passes():
    """A producer that starts over with other content loses nothing, and is followed anew."""
    window = DuplicateWindow()
    window.find((0, 0), 0, [message(0), message(1)])
    assert window.find((0, 1), 0, [message(0, crc=7), message(1, crc=8)]) == []
    assert window.find((0, 2), 0, [message(1, crc=8), message(2)]) == [0]
    assert window.find((0, 0), 0, [message(0), message(1)]) == []
    assert repr(window) == "<DuplicateWindow [1 runs of 3 Batches]>"


def test_forgetting_spares_the_new_life_of_a_sender():
    """What a producer sent before it started over is forgotten without harm to what came since."""
    window = DuplicateWindow()
    window.find((0, 0), 0, [message(0)])
    window.find((0, 1), 0, [message(0, crc=7)])
    window.find((0, 0), 0, [])
    assert window.find((0, 2), 0, [message(0, crc=7)]) == [0]


def test_runs_join_whatever_the_order():
    """Consecutive sequences of a Batch are one run, in whatever order they stand."""
    window = DuplicateWindow()
    window.find((0, 0), 0, [message(2), message(0), message(1)])
    assert repr(window) == "<DuplicateWindow [1 runs of 1 Batches]>"


def test_window_is_bounded():
    """Beyond its bound the window forgets the Batches that were handed out first."""
    window = DuplicateWindow(max_runs=3)
    for offset in range(10):
        window.find((0, offset), 0, [message(offset * 10)])
    assert repr(window) == "<DuplicateWindow [3 runs of 3 Batches]>"
    assert window.find((0, 10), 0, [message(0)]) == []
    assert window.find((0, 11), 0, [message(90)]) == [0]
    assert len(window._runs) == 1


def test_forgets_without_a_trace():
    """What is forgotten leaves nothing behind, however senders come and go."""
    window = DuplicateWindow(max_runs=1)
    for offset in range(50):
        window.find((0, offset), 0, [message(3, producer=f"p{offset}"), message(0, crc=offset)])
    assert window._count <= 1
    assert len(window._runs) <= 1


@given(st.lists(st.lists(st.integers(0, 12), max_size=6), max_size=12))
def test_each_message_passes_once(batches):
    """Whatever stands where, each Message is handed out exactly once."""
    window = DuplicateWindow()
    passed = []
    for offset, sequences in enumerate(batches):
        entries = [message(sequence) for sequence in sequences]
        duplicates = window.find((0, offset), 0, entries)
        passed += [s for position, s in enumerate(sequences) if position not in duplicates]
    assert passed == list(dict.fromkeys(s for sequences in batches for s in sequences))
