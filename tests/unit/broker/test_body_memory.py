"""The pool of receive memory: nobody finds other bytes in a body, and idle memory is bounded."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from memq.broker.memory import POOLED_BYTES, STEP_BYTES, BodyMemory

MIB = 1 << 20


def memory_of(limit_bytes: int = 64 * MIB) -> BodyMemory:
    return BodyMemory(limit_bytes)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["lend", "lend", "lend", "drop", "slice", "arrow", "tidy", "clear"]),
            st.integers(0, 5),
            st.sampled_from([POOLED_BYTES + 1, POOLED_BYTES + STEP_BYTES, POOLED_BYTES, 100]),
        ),
        min_size=3,
        max_size=40,
    )
)
def test_a_body_keeps_its_bytes_for_as_long_as_anyone_looks_at_it(steps) -> None:
    """Whatever is lent, cut and let go in any order, no view ever sees bytes of another loan."""
    memory = memory_of(4 * MIB)
    held: list[tuple[int, memoryview | pa.Buffer]] = []
    for number, (step, which, size) in enumerate(steps, 1):
        if step == "lend":
            body = memory.lend(size).cast("B")
            assert (len(body), body.readonly) == (size, False)
            body[:] = bytes([number]) * size
            held.append((number, body))
            del body
        elif step in ("tidy", "clear"):
            getattr(memory, step)()
        elif held:
            mark, view = held.pop(which % len(held))
            if step == "slice":
                held.append((mark, memoryview(view)[1:]))
            elif step == "arrow":
                held.append((mark, pa.py_buffer(view).slice(1)))
            del view
        for mark, view in held:
            assert set(memoryview(view)[:100]) <= {mark}
            assert memoryview(view)[-1:] in (b"", bytes([mark]))
        assert 0 <= memory.idle_bytes <= memory.limit_bytes // 4
    held.clear()
    memory.clear()
    assert memory.idle_bytes == 0


def test_idle_blocks_and_bodies_stay_within_the_limit_together() -> None:
    """A block that comes back when bodies take all the memory is freed, not kept."""
    memory = memory_of(16 * MIB)
    bodies = [memory.lend(MIB) for _ in range(8)]
    memory.admit(int(13.5 * MIB))
    bodies.clear()
    memory.tidy()
    assert memory.idle_bytes == 2 * MIB


def test_bodies_push_idle_blocks_out_and_wait_only_when_that_was_not_enough() -> None:
    """Memory that is merely kept never makes a producer wait."""
    memory = memory_of(12 * MIB)
    turns: list[bool] = []
    memory.on_change = lambda: turns.append(memory.full)
    bodies = [memory.lend(MIB) for _ in range(3)]
    bodies.clear()
    memory.tidy()
    assert memory.idle_bytes == 3 * MIB
    memory.admit(10 * MIB)
    assert (memory.idle_bytes, turns) == (0, [])
    memory.admit(2 * MIB)
    assert turns == [True]


def test_who_waits_is_told_once_when_it_is_full_and_once_when_there_is_room() -> None:
    """It is full at its limit, and open again when a tenth of it is free: not a byte before."""
    memory, told = BodyMemory(1_000), []
    memory.on_change = lambda: told.append((memory.full, memory.used_bytes))
    memory.admit(999)
    assert not memory.full
    memory.admit(1)
    memory.admit(50)
    memory.release(149)
    assert (memory.full, told) == (True, [(True, 1_000)])
    memory.release(1)
    memory.release(100)
    assert (memory.full, told) == (False, [(True, 1_000), (False, 900)])
    assert (memory.used_bytes, memory.peak_bytes) == (800, 1_050)
    memory.admit(200)
    assert told[2:] == [(True, 1_000)]
    memory.release(1_000)
    assert told[3:] == [(False, 0)]
    assert memory.peak_bytes == 1_050
