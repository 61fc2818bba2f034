"""A real S3-compatible server on this machine: S3Proxy, which keeps objects as files."""

import http.client
import secrets
import ssl
from pathlib import Path
from typing import ClassVar

from tests.harness.services.jars import S3PROXY, Jars
from tests.harness.services.process import JavaService

REGION = "us-east-1"
# A signed body is held in its heap: eight of 64 MiB at a time failed with 512 MiB.
HEAP_MIB = 1024
MAX_SIGNED_BODY_BYTES = 256 * 1024 * 1024


class S3Proxy(JavaService):
    """An S3-compatible server that checks signatures and keeps `If-None-Match: *`.

    After it was killed, a listing shows an upload that was cut short as an object `<key>-<uuid>`.

    Args:
        folder: with its data, settings and log.
        keystore: PKCS12 file with its certificate; it then serves HTTPS only.
        keystore_password: of that file.
        jars: of the services.

    Attributes:
        access_key: the only one that it knows.
        secret_key: of that.
    """

    name: ClassVar[str] = "s3proxy"

    def __init__(
        self,
        folder: str | Path,
        *,
        keystore: Path | None = None,
        keystore_password: str = "",
        jars: Jars | None = None,
    ) -> None:
        super().__init__(folder, jars=jars)
        self.access_key = "memq"
        self.secret_key = secrets.token_urlsafe(24)
        self._keystore = keystore
        self._keystore_password = keystore_password
        self._buckets = self.folder / "buckets"
        self._settings_path = self.folder / "s3proxy.properties"

    @property
    def endpoint(self) -> str:
        """URL of the server."""
        return f"{'https' if self._keystore else 'http'}://{self.address}"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables with which an S3 client uses this server."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": REGION,
            "AWS_ALLOW_HTTP": "true",
        }

    def make_bucket(self, name: str) -> None:
        """Make an empty bucket: S3Proxy takes each folder for one.

        Everybody may list one whose folder everybody may read.
        """
        (self._buckets / name).mkdir(mode=0o700)

    def _prepare(self) -> None:
        self._buckets.mkdir(exist_ok=True)
        lines = (f"{name}={value}\n" for name, value in self._settings().items())
        self._settings_path.write_text("".join(lines))

    def _arguments(self) -> list[str]:
        return [
            f"-Xmx{HEAP_MIB}m",
            "-XX:+UseSerialGC",
            "-cp",
            f"{self.jars.get(S3PROXY)}/*",
            "org.gaul.s3proxy.Main",
            "--properties",
            str(self._settings_path),
        ]

    def _settings(self) -> dict[str, object]:
        settings: dict[str, object] = {
            "s3proxy.authorization": "aws-v2-or-v4",
            "s3proxy.identity": self.access_key,
            "s3proxy.credential": self.secret_key,
            "s3proxy.v4-max-non-chunked-request-size": MAX_SIGNED_BODY_BYTES,
            "s3proxy.ignore-unknown-headers": "true",  # clients send tags, for example
            "jclouds.provider": "filesystem-nio2",
            "jclouds.filesystem.basedir": self._buckets,
        }
        if self._keystore:
            settings["s3proxy.secure-endpoint"] = self.endpoint
            settings["s3proxy.keystore-path"] = self._keystore
            settings["s3proxy.keystore-password"] = self._keystore_password
        else:
            settings["s3proxy.endpoint"] = self.endpoint
        return settings

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        if self._keystore:  # its certificate is for those to check who have made it
            anybody = ssl._create_unverified_context()  # noqa: S323
            connection = http.client.HTTPSConnection(
                "127.0.0.1", self.port, timeout=5, context=anybody
            )
        try:
            connection.request("GET", "/")
            return connection.getresponse().status == http.client.FORBIDDEN  # not signed
        finally:
            connection.close()
