"""An object store does what every storage must."""

from tests.contracts.storage import *  # noqa: F403 - the suite is the module
