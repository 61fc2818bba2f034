"""Users and rules as a broker knows them, who has which token, and where they are stored.

The document of users and rules stands in the data directory, or in the coordination service of a
cluster, where each broker watches it. A change is stored first, and then holds for all connections
at once: those of a user that was deleted end. While the service is away, the last document holds.

Rules decide once a listener asks its clients who they are. Users and rules can be made before that.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from memq.core.access.document import (
    SECRET_BYTES,
    AccessDocument,
    decode_document,
    encode_document,
)
from memq.core.access.rules import Rules
from memq.core.units import counted
from memq.errors import ForbiddenError, MemqError, StorageError
from memq.runtime.files import explain, replace_durably

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from memq.broker.aws_iam import AwsIam
    from memq.broker.config import BrokerConfig
    from memq.broker.oidc import Issuers
    from memq.broker.tokens import Tokens
    from memq.runtime.system import Runtime

log = logging.getLogger(__name__)

FILE = "access.json"


class AccessStore(Protocol):
    """Where the document is stored."""

    async def change(self, edit: Callable[[AccessDocument], AccessDocument]) -> AccessDocument:
        """Store another document, made from the one that is stored; return what is stored now.

        Raises:
            MemqError: nothing was changed; or, of a coordination service, nobody knows.
        """


class AccessControl:
    """See above.

    Args:
        config: of the broker.
        tokens: that clients may have.
        runtime: for randomness and clocks.

    Attributes:
        config, tokens, runtime: as given.
        issuers: of tokens that are signed; None without.
        aws_iam: knows AWS identities; None where they are not asked for.
        asking: names of listeners that ask who their clients are.
        enforced: there is one.
        document: that holds now.
        rules: that decide; None while no listener asks who its clients are.
        all_rules: of the document, whether they decide or not.
        on_change: called when the document or the tokens have changed.
    """

    def __init__(self, config: BrokerConfig, tokens: Tokens, runtime: Runtime) -> None:
        self.config, self.tokens, self.runtime = config, tokens, runtime
        listeners = config.all_listeners().items()
        self.asking = {name for name, each in listeners if each.authentication == "required"}
        self.enforced = bool(self.asking)
        self.issuers: Issuers | None = None
        self.aws_iam: AwsIam | None = None
        # Only few brokers need PyJWT, and what it loads.
        if config.oidc:
            from memq.broker.oidc import Issuers  # noqa: PLC0415

            self.issuers = Issuers(config.oidc, runtime)
        if config.aws_iam:
            from memq.broker.aws_iam import AwsIam  # noqa: PLC0415

            self.aws_iam = AwsIam(config.aws_iam, runtime)
        self.on_change: Callable[[], None] = lambda: None
        self.adopt(self.new_document())

    def __repr__(self) -> str:
        return f"<AccessControl {self.document!r}>"

    def new_document(self) -> AccessDocument:
        """Make a document without users and rules."""
        return AccessDocument(secret=bytes.fromhex(self.runtime.token_hex(SECRET_BYTES)))

    def adopt(self, document: AccessDocument) -> None:
        """Let another document hold."""
        self.document = document
        self.all_rules = Rules(document.rules, self.config.superusers)
        self.rules = self.all_rules if self.enforced else None
        self.on_change()

    async def begin(self, store: AccessStore) -> None:
        """Let the document say that rules decide, if they do here.

        Raises:
            MemqError: as `AccessStore.change`.
        """
        if not self.enforced or self.document.enforced:
            return
        document = await store.change(lambda now: replace(now, enforced=True))
        log.warning(
            "rules decide from now on; made before that, by anybody: %s, %s",
            counted(len(document.users), "user"),
            counted(len(document.rules), "rule"),
        )

    def check_has_a_say(self) -> None:
        """Refuse to change or tell users and rules where clients could be anybody.

        Raises:
            ForbiddenError: other brokers of the cluster know who their clients are.
        """
        if self.document.enforced and not self.enforced:
            raise ForbiddenError(
                "this broker asks nobody who they are, and others of its cluster do, or it did "
                "before: ask one of those, or set authentication = required here"
            )

    def reload_tokens(self) -> None:
        """Read the file of tokens again."""
        self.tokens.reload()
        self.on_change()


class FileStore:
    """The document in a file of the data directory.

    Args:
        folder: of the data.
        control: to which each stored document is told.
    """

    def __init__(self, folder: Path, control: AccessControl) -> None:
        self._path = folder / FILE
        self._control = control

    def __repr__(self) -> str:
        return f"<FileStore {self._path}>"

    def load(self) -> None:
        """Read the file, if it is there.

        Raises:
            CorruptDataError: it is damaged.
            StorageError: it cannot be read.
        """
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as exc:
            raise StorageError(f"cannot read {self._path}: {explain(exc)}") from exc
        try:
            document = decode_document(content)
        except MemqError as exc:
            raise type(exc)(f"{self._path}: {exc}; put back a backup of it") from exc
        self._control.adopt(document)
        log.info("%s in %s", counted(len(document.users), "user"), self._path)

    async def change(self, edit: Callable[[AccessDocument], AccessDocument]) -> AccessDocument:
        """Store another document; see `AccessStore`. It is small: the event loop waits for it."""
        document = edit(self._control.document)
        write_document(self._path, document)
        self._control.adopt(document)
        return document


def write_document(path: Path, document: AccessDocument) -> None:
    """Write a document to a file that only its owner reads.

    Raises:
        LimitReachedError: it is too large.
        StorageError: it cannot be written.
    """
    content = encode_document(document)
    try:
        replace_durably(path, content, mode=0o600)
    except OSError as exc:
        raise StorageError(f"cannot write {path}: {explain(exc)}") from exc
