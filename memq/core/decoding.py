"""What decoding JSON or msgpack may raise, where the bytes are damaged or come from anybody."""

from __future__ import annotations

import msgspec

UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Only the first is msgspec's own: what is no UTF-8 raises the second, deep nesting the third."""
