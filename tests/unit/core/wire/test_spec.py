"""The page of the protocol is what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from docs.generate import protocol as spec
from memq.core.wire import connection
from memq.core.wire.messages import REQUESTS, Handshake, Write
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
