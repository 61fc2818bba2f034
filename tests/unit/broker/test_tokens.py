"""Tokens that a broker accepts, and whose they are."""

import logging

import pytest

from memq.broker.config import BrokerConfig
from memq.broker.tokens import Tokens
from memq.errors import ConfigError


def tokens(**options):
    config = BrokerConfig.create(options)
    return Tokens(config.token, config.token_file)


def test_any_of_several_tokens_is_accepted():
    """A list accepts each of its tokens, and nothing else; a text is one token."""
    several = tokens(token=["new", "old,er"])
    assert several.accept("new")
    assert several.accept("old,er")
    assert not any(several.accept(each) for each in ("old", "", "\u00e9"))
    assert tokens(token="a,b").accept("a,b")
    assert not tokens(token="a,b").accept("a")


def test_file_is_read_again(tmp_path):
    """The file's tokens, one a line, replace those read before."""
    path = tmp_path / "tokens"
    path.write_text("old\n\n  new \n")
    some = tokens(token_file=str(path))
    assert [some.accept(each) for each in ("old", "new", "")] == [True, True, False]
    path.write_text("new")
    some.reload()
    assert [some.accept(each) for each in ("old", "new")] == [False, True]


@pytest.mark.parametrize("content", [None, b"", b"\n \n", b"\xff", b"x\n" * (1 << 20)])
def test_file_that_cannot_be_used(tmp_path, content, caplog):
    """It is refused at the start, and later leaves the tokens as they were, and says so."""
    path = tmp_path / "tokens"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match="token_file"):
        tokens(token_file=str(path))
    path.write_text("good")
    some = tokens(token_file=str(path))
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with caplog.at_level(logging.INFO):
        some.reload()
    assert some.accept("good")
    assert not some.accept("")
    assert "tokens not reloaded" in caplog.text
    assert "good" not in caplog.text


def test_a_name_before_a_token_says_whose_it_is():
    """A token without a name is that of `User:token`, and one of nobody has no holder."""
    some = tokens(token=["alice  one", "two", "alice\tthree"])
    holders = [some.holder(each) for each in ("one", "two", "three", "alice", "", "alice  one")]
    assert holders == ["User:alice", "User:token", "User:alice", None, None, None]
    assert not some.accept("alice  one")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([" "], "a token has no space in it"),
        (["alice "], "a token has no space in it"),
        (["alice two words"], "a token has no space in it"),
        (["alice \u200b"], "a token has no space in it"),
        (["a" * 300 + " x"], "it has 1 to 250"),
        (["alice x", "bob x"], "User:bob and User:alice have the same token"),
        (["alice x", "x"], "User:token and User:alice have the same token"),
    ],
)
def test_a_token_that_is_not_certain_to_be_one_is_refused(given, said):
    """An empty one would let in everybody, and one of two holders somebody else."""
    with pytest.raises(ConfigError, match=said):
        tokens(token=given)
