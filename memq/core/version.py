"""The version of memq that runs; a module of its own, as looking it up takes time."""

from importlib import metadata

try:
    __version__ = metadata.version("memq")
except metadata.PackageNotFoundError:
    __version__ = "(run from a source tree that is not installed)"
