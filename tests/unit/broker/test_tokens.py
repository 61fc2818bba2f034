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
    some = tokens(token=["alice  one", "two", "alice three", "bob two words"])
    holders = [some.holder(each) for each in ("one", "two", "three", "two words", "alice", "")]
    assert holders == ["User:alice", "User:token", "User:alice", "User:bob", None, None]
    assert not some.accept("alice  one")
