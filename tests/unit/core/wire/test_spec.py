"""The page of the protocol is what the code does."""

import re
from pathlib import Path

import msgspec
import pytest

from docs.generate import protocol as spec
from memq.core.wire.messages import Handshake, Write
from tests.unit.core.wire.builders import server_reader

PAGE = Path(__file__).parents[4] / "docs" / "protocol.md"


@pytest.fixture(scope="module")
def page():
    return PAGE.read_text(encoding="utf-8")


def test_committed_page_is_current(page):
    """The page in the repository equals the code; `make docs` mends it when it does not."""
    assert page == spec.render(page)


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
