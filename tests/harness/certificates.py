"""Certificates for tests, in files: one authority of a session's folder."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from memq.runtime.certificates import Authority, Issued

if TYPE_CHECKING:
    from pathlib import Path

DAY = timedelta(days=1)


class Certificates:
    """An authority and the files that it has signed.

    Args:
        folder: for the files.
        name: of the authority.
    """

    def __init__(self, folder: Path, name: str = "tests") -> None:
        self._folder = folder
        self.now = datetime.now(UTC)
        self.authority = Authority(name, self.now - 30 * DAY, 365 * DAY)
        self.ca = self._write(f"{name}-ca.pem", self.authority.own.cert)

    def _write(self, name: str, content: bytes) -> str:
        path = self._folder / name
        path.write_bytes(content)
        return str(path)

    def issue(
        self,
        name: str = "broker",
        *hosts: str,
        begins: timedelta = timedelta(),
        lasts: timedelta = 90 * DAY,
        client: bool = False,
    ) -> Issued:
        """Sign a certificate that begins in so long."""
        names = hosts or (() if client else ("127.0.0.1", "localhost"))
        return self.authority.issue(name, names, self.now + begins, lasts, client=client)

    def write(self, issued: Issued, name: str = "broker") -> tuple[str, str]:
        """Put a certificate and its key into files; replaced as `mv` does."""
        paths = []
        for suffix, content in (("cert", issued.cert), ("key", issued.key)):
            new = self._folder / f"{name}-{suffix}.new"
            new.write_bytes(content)
            paths.append(str(new.rename(self._folder / f"{name}-{suffix}.pem")))
        return paths[0], paths[1]

    def revoke(self, *issued: Issued) -> str:
        """Write the list of revoked certificates."""
        return self._write("crl.pem", self.authority.revoke(issued, self.now, DAY))

    def broker_options(
        self, *, begins: timedelta = timedelta(), lasts: timedelta = 90 * DAY
    ) -> dict[str, str]:
        """Options of a broker with a certificate of its own."""
        cert, key = self.write(self.issue(begins=begins, lasts=lasts))
        return {"tls_cert": cert, "tls_key": key}
