"""The document of users and rules: what changes make of it, and what is refused."""

import base64

import msgspec
import pytest

from memq.core.access.document import AccessDocument, decode_document, encode_document
from memq.core.access.rules import Rule
from memq.core.access.users import SALT_BYTES, User, check_user, new_user, pretended_user
from memq.errors import CorruptDataError, InvalidRequestError, LimitReachedError

SALT = bytes(range(SALT_BYTES))
ALICE = new_user("alice", "correct horse", SALT)
RULE = Rule(principal="User:alice", operation="read", type="topic", name="t")
EMPTY = AccessDocument(secret=b"\x07" * 32)

GOLDEN = (
    b'{"secret":"BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=","enforced":false,"users":{"alice":{"name":"alice",'
    b'"salt":"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",'
    b'"stored_key":"%s","server_key":"%s","iterations":16384}},'
    b'"rules":[{"principal":"User:alice","operation":"read","type":"topic","name":"t"}],'
    b'"quotas":{"User:*":{"requests":5}},"version":1}'
)


def test_a_document_is_read_as_it_was_written():
    """Users, rules and quotas come back equal, and a document has these bytes."""
    document = EMPTY.with_user(ALICE, replace=False).with_rules([RULE], [])
    document = document.with_quota("User:*", {"requests": 5})
    encoded = encode_document(document)
    assert decode_document(encoded) == document
    keys = tuple(base64.b64encode(each) for each in (ALICE.stored_key, ALICE.server_key))
    assert encoded == GOLDEN % keys
    assert keys == (
        b"PrJrBNzmzpByv2EjI1NF8BSgeF+gyIZij+O7UUywO30=",
        b"ZZd40mhjiADHEXTyrgkgT3F27LXcoZjjw2/dziRdlUQ=",
    )


def test_users_come_change_and_go():
    """A user is created once, altered while it is there, and deleted once."""
    made = EMPTY.with_user(ALICE, replace=False)
    other = new_user("alice", "another one", SALT)
    with pytest.raises(InvalidRequestError, match="'alice' exists already"):
        made.with_user(other, replace=False)
    with pytest.raises(InvalidRequestError, match="no user 'alice'; `memq user create`"):
        EMPTY.with_user(other, replace=True)
    assert made.with_user(other, replace=True).users == {"alice": other}
    assert made.without_user("alice") == EMPTY
    with pytest.raises(InvalidRequestError, match="no user 'bob'; see `memq user list`"):
        made.without_user("bob")


def test_rules_are_there_once():
    """A rule that is added twice stands once; one that is removed and is not there is no error."""
    document = EMPTY.with_rules([RULE, RULE], []).with_rules([RULE], [])
    assert document.rules == (RULE,)
    other = msgspec.structs.replace(RULE, name="u")
    assert document.with_rules([other], [RULE]).rules == (other,)
    assert document.with_rules([], [other]) == document
    with pytest.raises(InvalidRequestError, match="must be one of"):
        EMPTY.with_rules([msgspec.structs.replace(RULE, type="x")], [])


def test_a_document_that_is_too_large_is_refused():
    """The error says how much there is, and what to do."""
    rules = [msgspec.structs.replace(RULE, name=f"topic-{number}") for number in range(20_000)]
    with pytest.raises(LimitReachedError, match=r"20000 rules take .* up to 1000000 are allowed"):
        encode_document(EMPTY.with_rules(rules, []))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"version": 2}, "version 2; this reader knows 1"),
        ({"users": {"bob": ALICE}}, "user 'alice' is called 'bob'"),
        ({"rules": (msgspec.structs.replace(RULE, host="x"),)}, "write an address"),
    ],
)
def test_a_damaged_document_is_no_document(changed, said):
    """What could not be written is not read either, and the secret is not told."""
    damaged = msgspec.json.encode(msgspec.structs.replace(EMPTY, **changed))
    for data in (damaged, damaged[:-1]):
        with pytest.raises(CorruptDataError) as error:
            decode_document(data)
        assert "Bwc" not in str(error.value)
    with pytest.raises(CorruptDataError, match=said):
        decode_document(damaged)


@pytest.mark.parametrize(
    ("name", "password", "said"),
    [
        ("alice", "short", "at least 8 characters that are seen, and up to 256"),
        ("alice", "\u00ad" * 8, "characters that are seen"),
        ("alice", "\ufe00" * 9, "characters that are seen"),
        ("alice", "x" * 257, "up to 256"),
        ("anonymous", "long enough", "none of anonymous, token"),
        ("token", "long enough", "none of anonymous, token"),
        ("", "long enough", "user '' is not valid"),
        ("a b", "long enough", "is not valid"),
        ("a" * 101, "long enough", "is not valid"),
        ("alice", "\u0001 hidden more", "cannot be a password"),
    ],
)
def test_users_that_cannot_log_in_are_refused(name, password, said):
    """The error says what is allowed, and not the password."""
    with pytest.raises(InvalidRequestError, match=said) as error:
        new_user(name, password, SALT)
    assert password not in str(error.value)


def test_a_verifier_of_other_strength_is_refused():
    """All users have the same number of iterations: it must not tell which of them are there."""
    for changed in ({"iterations": 4096}, {"salt": b"short"}, {"stored_key": b""}):
        with pytest.raises(InvalidRequestError, match="a verifier has"):
            check_user(msgspec.structs.replace(ALICE, **changed))


def test_nobody_looks_like_a_user():
    """Who does not exist has a salt that stays, another one in each cluster and for each name."""
    nobody = pretended_user("bob", b"secret")
    check_user(nobody)
    assert nobody == pretended_user("bob", b"secret")
    others = [pretended_user("bob", b"other"), pretended_user("eve", b"secret")]
    assert len({each.salt for each in (nobody, *others)}) == 3
    assert repr(ALICE) == "<User alice>"
    assert isinstance(pretended_user("\ud800", b"secret"), User)
