"""The page of the protocol is what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from docs.generate import protocol as spec
from memq.core.decoding import UNDECODABLE
from memq.core.wire import connection
from memq.core.wire.messages import REQUESTS, Handshake, Write
from memq.errors import NotHostedError
from tests.unit.core.wire.builders import server_reader

PAGE = Path(__file__).parents[4] / "docs" / "protocol.md"


@pytest.fixture(scope="module")
def page():
    return PAGE.read_text(encoding="utf-8")


def test_committed_page_is_current(page):
    """The page in the repository equals the code; `make docs` mends it when it does not."""
    assert page == spec.render(page)


def test_write(tmp_path):
    """The command renews the parts of the file it is given, and nothing else."""
    path = tmp_path / "page.md"
    path.write_text("# Mine\n<!-- begin states -->\nold\n<!-- end -->\nrest\n", encoding="utf-8")
    spec.main(str(path))

    text = path.read_text(encoding="utf-8")
    assert text.startswith("# Mine\n<!-- begin states -->\n\n| side | state |")
    assert text.endswith("|\n\n<!-- end -->\nrest\n")
    assert "old" not in text


@pytest.mark.parametrize("code", REQUESTS)
def test_every_request_is_described(page, code):
    """Each request stands there with its code, and each of its fields with type and default."""
    request, answer = REQUESTS[code]
    section = page.split(f"\n### {code}: {request.__name__}\n")[1].split("\n##")[0]

    assert f"Answer `{answer.__name__}`: " in section
    for struct in (request, answer):
        for field in msgspec.structs.fields(struct):
            assert f"\n| `{field.name}` | " in section


def test_fields_have_their_meaning(page):
    """Types, defaults and meanings are those of the structs and their docstrings."""
    assert "| `versions` | array of int |  | protocol versions that the client speaks. |" in page
    assert "| `topics` | array of str or nil | nil | the topics wanted; None for all. |" in page
    assert "| `schemas` | map of str to bin |  |" in page
    assert "| `max_entries` | int | `500` | most notifications to return. |" in page
    assert "| `batch_bytes` | int |  | A Batch is sealed when it holds this much. |" in page
    assert "A place in a read partition. An array of its fields, in this order, not a map." in page
    wrapped = "least sequence that this producer may still send; all before it are acked or given"
    assert wrapped in page


def test_every_error_is_described(page):
    """Each code stands there with whether it is retriable."""
    assert "| `not_hosted` | yes |" in page
    assert "| `corrupt_data` | no |" in page
    assert f"| `{NotHostedError.code}` | yes | This broker does not host the topic or" in page


def test_every_limit_is_described(page):
    """Each limit stands there with its value."""
    limits = [name for name in vars(connection) if "MAX" in name]
    assert len(limits) == 7
    for name in limits:
        assert f"| `{name}` | {getattr(connection, name)} | " in page


def test_examples_are_frames(page):
    """The bytes of the page are a Handshake and a Write, as its prose says."""
    handshake, write = (
        bytes.fromhex(block) for block in re.findall(r"```\n([0-9a-f \n]+)\n```", page)
    )
    first, second = server_reader().feed(handshake + write + b"123456789")

    assert msgspec.msgpack.decode(first.header, type=Handshake).client == "example"
    header = msgspec.msgpack.decode(second.header, type=Write)
    assert (header.topic, header.sequence, header.first_unsettled) == ("clicks", 7, 5)
    assert second.body == b"123456789"
    assert f"`{second.body_crc:08x}`" in page


def test_decoder_errors_are_covered():
    """The errors of msgspec are among those that count as a bad header."""
    assert issubclass(msgspec.DecodeError, UNDECODABLE)
