"""CRC32C, which every hop of a Message checks: wire, object, index, page file.

It is the checksum of SCTP and iSCSI (RFC 3720, appendix B.4), which processors have an instruction
for and object stores can check as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from awscrt import checksums

if TYPE_CHECKING:
    from collections.abc import Callable

crc32c: Callable[..., int] = checksums.crc32c
"""`crc32c(data, previous=0)`: the CRC32C of any contiguous bytes, as an unsigned integer.

Bytes that come in pieces are continued with the result so far as `previous`. Large pieces are read
without the interpreter's lock.
"""
