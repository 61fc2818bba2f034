"""Looking into Batches: what is sound, what is damaged, and whose it is."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.client.audit.stored import Inspection, inspect
from memq.errors import ObjectNotFoundError, StorageError, UnavailableError
from tests.unit.client.batches import notify
from tests.unit.core.format.builders import joined, records, seal

SEALED = seal([records(2 + number) for number in range(5)])
DATA = joined(SEALED)
NOTIFICATION = notify(SEALED)


def look(data, *, deep, **fields):
    notification = msgspec.structs.replace(NOTIFICATION, **fields)
    return inspect(
        notification, lambda start, length: bytes(data[start : start + length]), deep=deep
    )


def sequences(runs):
    return {s for run in runs for s in range(run.first, run.last + 1)}


@pytest.mark.parametrize("deep", [False, True])
def test_sound_batch_has_no_findings(deep):
    """Every Message of a sound Batch counts, and nothing is said about it."""
    found = look(DATA, deep=deep)
    assert list(found.sound) == list(SEALED.entries)
    assert (list(found.damaged), list(found.findings), found.gone) == ([], [], False)


@given(position=st.integers(0, len(DATA) - 1), value=st.integers(1, 255))
def test_no_wrong_byte_escapes_a_deep_look(position, value):
    """Whatever byte is wrong, it is found, and only sound Messages count as such."""
    data = bytearray(DATA)
    data[position] ^= value
    found = look(data, deep=True)
    assert found.findings
    assert {entry.sequence for entry in found.sound} | sequences(found.damaged) == set(range(5))
    for entry in found.sound:
        whole = slice(entry.offset, entry.offset + entry.length)
        assert data[whole] == DATA[whole]
    if SEALED.entries[0].offset <= position < SEALED.entries[-1].offset:
        assert len(found.sound) == 4


@given(position=st.integers(0, len(DATA) - 1), value=st.integers(1, 255))
def test_index_alone_never_misleads(position, value):
    """With any byte wrong, the index is the true one or the whole Batch is called damaged."""
    data = bytearray(DATA)
    data[position] ^= value
    found = look(data, deep=False)
    if position >= SEALED.index_offset:
        assert sequences(found.damaged) == set(range(5))
        assert found.findings
    else:
        assert list(found.sound) == list(SEALED.entries)


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("size", [0, 1, 20, len(DATA) - 1])
def test_batch_cut_short_is_damaged(deep, size):
    """An object that is shorter than it should be holds nothing that can be relied on."""
    found = look(DATA[:size], deep=deep)
    assert sequences(found.damaged) == set(range(5))


@pytest.mark.parametrize("deep", [False, True])
def test_another_batch_is_not_taken_for_this_one(deep):
    """The object must hold the Batch that the notification names."""
    found = look(DATA, deep=deep, batch_id="batch-2")
    assert sequences(found.damaged) == set(range(5))
    assert "another Batch, batch-1" in found.findings[0]


@pytest.mark.parametrize("deep", [False, True])
def test_notification_that_names_other_messages_is_a_finding(deep):
    """Index and notification must agree; the Messages of the index count."""
    found = look(DATA, deep=deep, producers=[])
    assert len(found.sound) == 5
    assert "name different Messages" in found.findings[0]


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (ObjectNotFoundError("no"), Inspection(findings=["the object does not exist"], gone=True)),
        (StorageError("bad"), Inspection(damaged=NOTIFICATION.producers, findings=["bad"])),
        (UnavailableError("away"), None),
    ],
)
def test_an_object_that_cannot_be_read_is_gone_or_damaged(error, found):
    """Where nobody can be asked, nothing is said about it."""

    def get_range(start, length):
        raise error

    if found is None:
        with pytest.raises(UnavailableError):
            inspect(NOTIFICATION, get_range, deep=False)
    else:
        assert inspect(NOTIFICATION, get_range, deep=False) == found
