"""Lines of a stream in blocks, so that memory stays bounded and a slow stream is not held back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memq.errors import InvalidRequestError, MessageTooLargeError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader

BLOCK_BYTES = 1 << 20  # splitting much less costs more per line; much more only waits in memory
MAX_LINE_BYTES = 64 << 20  # no topic takes a larger Message


def read_lines(
    stream: BufferedReader, *, max_line_bytes: int = MAX_LINE_BYTES
) -> Iterator[list[bytes]]:
    """Lines without their newline, as many as arrive at a time; the last one may lack it.

    Raises:
        MessageTooLargeError: a line is longer than any topic takes.
    """
    rest = b""
    while block := stream.read1(BLOCK_BYTES):
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        if len(rest) > max_line_bytes:
            raise MessageTooLargeError(
                f"a line is longer than {max_line_bytes} bytes, the most that a topic takes; "
                "is the input text?"
            )
        if lines:
            yield lines
    if rest:
        yield [rest]


def split_key(line: bytes, separator: bytes, number: int) -> tuple[bytes, bytes]:
    """Key and value of a line.

    Raises:
        InvalidRequestError: the separator is not in it.
    """
    key, found, value = line.partition(separator)
    if not found:
        raise InvalidRequestError(
            f"line {number} has no key separator {separator.decode()!r}: {line[:80]!r}"
        )
    return key, value
