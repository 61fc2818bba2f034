"""Certificates for the services of the tests, made by the keytool that comes with Java."""

import socket
import ssl
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.harness.services.jars import command

PASSWORD = "password"  # noqa: S105 - it protects nothing


class Certificate(NamedTuple):
    """A certificate that is its own authority.

    Attributes:
        keystore: PKCS12 file with it and its key, for the server.
        password: of that file.
        pem: file with it alone, for clients.
    """

    keystore: Path
    password: str
    pem: Path


def make_certificate(folder: Path, service: str) -> Certificate:
    """A new certificate for 127.0.0.1, in files that are named after a service.

    Raises:
        ServiceUnavailableError: this machine has no keytool.
    """
    made = Certificate(folder / f"{service}.p12", PASSWORD, folder / f"{service}.pem")
    where = ("-keystore", str(made.keystore), "-storepass", made.password, "-alias", service)
    keytool = (command(service, "keytool"), *where)
    whose = ("-dname", "CN=127.0.0.1", "-ext", "san=ip:127.0.0.1")
    for arguments in (
        ("-genkeypair", "-keyalg", "EC", "-storetype", "PKCS12", *whose),
        ("-exportcert", "-rfc", "-file", str(made.pem)),
    ):
        subprocess.run([*keytool, *arguments], check=True, capture_output=True)
    return made


def encrypted(connection: socket.socket) -> ssl.SSLSocket:
    """The same connection with TLS; the certificate is for those to check who have made it."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(connection)
