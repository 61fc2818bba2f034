"""Certificates as brokers check them: what passes is what clients accept."""

import time

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from memq.errors import ConfigError
from memq.runtime.tls import TlsFiles, check_certificate, server_context
from tests.harness.certificates import DAY, Certificates

NAMES = {
    "a name": ("broker-1.example.com", "broker-1.example.com", True),
    "in capitals": ("broker-1.example.com", "Broker-1.Example.COM", True),
    "another name": ("broker-1.example.com", "broker-2.example.com", False),
    "a wildcard": ("*.memq.svc", "broker-1.memq.svc", True),
    "a wildcard of two labels": ("*.memq.svc", "a.broker-1.memq.svc", False),
    "a wildcard of all": ("*.memq", "broker-1.memq", False),
    "an address": ("10.0.0.1", "10.0.0.1", True),
    "another address": ("10.0.0.1", "10.0.0.2", False),
    "an address of version 6": ("::1", "0:0:0:0:0:0:0:1", True),
    "letters of others": ("xn--bcher-kva.example", "b\u00fccher.example", True),
}


@pytest.mark.parametrize(("name", "host", "fits"), NAMES.values(), ids=NAMES)
def test_names(tmp_path, name, host, fits):
    """OpenSSL decides, as it does for clients."""
    certificates = Certificates(tmp_path)
    cert, key = certificates.write(certificates.issue("broker", name))
    context = server_context(TlsFiles(cert=cert, key=key), "none")
    if fits:
        ends_s = check_certificate(context, cert, host, time.time())
        assert abs(ends_s - (certificates.now + 90 * DAY).timestamp()) < 2
    else:
        with pytest.raises(ConfigError, match=f"clients that connect to {host} refuse"):
            check_certificate(context, cert, host, time.time())


def test_a_host_that_can_be_no_name(tmp_path):
    """It is refused in words."""
    certificates = Certificates(tmp_path)
    cert, key = certificates.write(certificates.issue())
    context = server_context(TlsFiles(cert=cert, key=key), "none")
    with pytest.raises(ConfigError, match="can be no name"):
        check_certificate(context, cert, ".x", time.time())


ENCRYPTED = ec.generate_private_key(ec.SECP256R1()).private_bytes(
    serialization.Encoding.PEM,
    serialization.PrivateFormat.PKCS8,
    serialization.BestAvailableEncryption(b"secret"),
)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (b"nonsense", "or tls_key = .* is no PEM of what it should hold"),
        (ENCRYPTED, "the private key is encrypted; give it without a password"),
    ],
)
def test_keys_that_cannot_be_used(tmp_path, key, message):
    """The error names both files, of which one is at fault; nobody is asked for a password."""
    certificates = Certificates(tmp_path)
    cert, _ = certificates.write(certificates.issue())
    path = tmp_path / "other.pem"
    path.write_bytes(key)
    with pytest.raises(ConfigError, match=message):
        server_context(TlsFiles(cert=cert, key=str(path), prefix="tls_"), "none")


def test_files_that_vanish_while_they_are_loaded(tmp_path, monkeypatch):
    """As when they are swapped: it is a typed error, which a reload takes, and ends no broker."""
    certificates = Certificates(tmp_path)
    cert, key = certificates.write(certificates.issue())
    context = server_context(TlsFiles(cert=cert, key=key), "none")
    monkeypatch.setattr("memq.runtime.tls._check_readable", lambda *_: None)
    (tmp_path / "broker-cert.pem").unlink()
    with pytest.raises(ConfigError, match="cannot read tls_cert = "):
        server_context(TlsFiles(cert=cert, key=key, prefix="tls_"), "none")
    with pytest.raises(ConfigError, match="cannot read the certificate"):
        check_certificate(context, cert, "localhost", time.time())
