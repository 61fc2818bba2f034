"""An object store does what every storage must."""

from __future__ import annotations

from tests.contracts.storage import *  # noqa: F403 - the suite is the module
