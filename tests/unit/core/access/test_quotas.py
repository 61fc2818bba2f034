"""Quotas: what is limited, by which of them, and for how long a client waits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.access.document import AccessDocument, decode_document, encode_document
from memq.core.access.quotas import LIMITS, MAX_DEBT_S, TokenBucket, check_quota, limits_of
from memq.errors import CorruptDataError, InvalidRequestError


@given(
    st.integers(1, 1_000),
    st.lists(st.tuples(st.integers(0, 3_000), st.floats(0, 3)), min_size=1, max_size=50),
)
def test_who_waits_as_told_keeps_to_the_limit(rate, steps):
    """A client that waits as it is told gets at most the rate, and the first second's worth."""
    now_s, taken, bucket = 0.0, 0, TokenBucket(rate, 0.0)
    for amount, idle_s in steps:
        amount = min(amount, int(MAX_DEBT_S * rate))  # noqa: PLW2901 - a debt beyond is forgotten
        now_s += idle_s + bucket.take(amount, now_s)
        taken += amount
        assert taken <= rate * (now_s + 1) + 1e-3


@given(st.integers(1, 1_000), st.integers(0, 1 << 40))
def test_no_wait_is_longer_than_the_most(rate, amount):
    """However much a client does at once, it waits for 30 seconds, and then owes nothing."""
    bucket = TokenBucket(rate, 0.0)
    assert bucket.take(amount, 0.0) <= MAX_DEBT_S
    assert bucket.take(0, MAX_DEBT_S) == pytest.approx(0.0)


def test_what_is_reserved_is_waited_for_and_is_no_debt():
    """Others wait for what one may take, and not for what it did not take."""
    bucket = TokenBucket(10, 0.0)
    bucket.reserve(1_000_000)
    assert bucket.take(0, 0.0) == MAX_DEBT_S
    assert not bucket.is_full(0.0)
    bucket.reserve(-1_000_000)
    assert bucket.is_full(0.0)
    assert bucket.take(20, 0.0) == pytest.approx(1.0)


def test_what_is_not_used_is_kept_for_a_second():
    """An idle client may do a second's worth at once, and no more."""
    bucket = TokenBucket(10, 0.0)
    assert bucket.take(10, 100.0) == 0
    assert bucket.take(10, 100.0) == pytest.approx(1.0)


QUOTAS = {
    "User:etl": {"requests": 5},
    "User:*": {"requests": 1, "mutations": 2},
    "group:*": {"replay_bytes": 9},
}


@pytest.mark.parametrize(
    ("kind", "name", "found"),
    [
        ("User", "etl", {("User:etl", "requests", 5), ("User:*", "mutations", 2)}),
        ("User", "web", {("User:*", "requests", 1), ("User:*", "mutations", 2)}),
        ("group", "g", {("group:*", "replay_bytes", 9)}),
        ("client", "etl", set()),
    ],
)
def test_the_own_limit_holds_before_that_of_all(kind, name, found):
    """A limit of a holder's own holds; for each that it lacks, that of the star."""
    assert set(limits_of(QUOTAS, kind, name)) == found


@pytest.mark.parametrize(
    ("holder", "limits", "words"),
    [
        ("etl", {"requests": 1}, "User:NAME"),
        ("topic:t", {"requests": 1}, "User:NAME"),
        ("User:", {"requests": 1}, "printable"),
        ("User:a\n", {"requests": 1}, "printable"),
        ("User:a", {}, "without a limit"),
        ("User:a", {"bytes": 1}, "bytes_in"),
        ("User:a", {"requests": 0}, "from 1"),
        ("User:a", {"requests": -1}, "from 1"),
        ("User:a", {"requests": 1 << 60}, "from 1"),
        ("group:g", {"connections": 1}, "by User or client"),
        ("User:a", {"x\nforged line": 1}, r"'x\\nforged line' 1"),
    ],
)
def test_what_is_no_quota_is_refused(holder, limits, words):
    """A quota of nobody, without a limit, or with a wrong one is refused, also where stored."""
    with pytest.raises(InvalidRequestError, match=words):
        check_quota(holder, limits)
    stored = encode_document(AccessDocument(secret=b"s", quotas={holder: limits}))
    with pytest.raises(CorruptDataError):
        decode_document(stored)


def test_limits_are_set_one_by_one():
    """A change sets the limits that it names, None takes one away, nothing takes all away."""
    document = AccessDocument(secret=b"s").with_quota("User:a", {"requests": 1, "mutations": 2})
    assert decode_document(encode_document(document)) == document
    document = document.with_quota("User:a", {"requests": 3, "mutations": None})
    assert document.quotas == {"User:a": {"requests": 3}}
    assert document.with_quota("User:a", {"requests": None}).quotas == {}
    assert document.with_quota("User:a", {}).quotas == {}


@pytest.mark.parametrize("limits", [{}, {"requests": None}])
def test_what_is_not_there_cannot_be_taken_away(limits):
    """A quota that is not there cannot be removed."""
    with pytest.raises(InvalidRequestError, match="no quota of 'User:a'"):
        AccessDocument(secret=b"s").with_quota("User:a", limits)


def test_each_limit_says_what_it_is():
    """Each limit has a sentence for help and reference."""
    assert all(meaning.endswith(".") for meaning in LIMITS.values())
