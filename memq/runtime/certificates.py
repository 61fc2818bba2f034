"""A small certificate authority: what `memq dev --secure` and tests sign certificates with.

It is no authority for a team, which has one already: cert-manager, Vault, step-ca, or that of its
cloud. Keys are EC P-256, and extensions those that OpenSSL's strict checks ask for (RFC 5280).
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Iterable

EARLIER = timedelta(minutes=5)  # of the beginning: clocks of two machines differ


@dataclass(frozen=True)
class Issued:
    """A certificate with its private key."""

    certificate: x509.Certificate
    private_key: ec.EllipticCurvePrivateKey

    def __repr__(self) -> str:
        return f"<Issued {self.certificate.subject.rfc4514_string()}>"  # never the key

    @property
    def cert(self) -> bytes:
        """The certificate in PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key(self) -> bytes:
        """The private key in PEM, not encrypted."""
        return self.private_key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )


class Authority:
    """Signs certificates.

    Args:
        name: of the authority.
        now: when it begins.
        lasts: for how long it is valid.

    Attributes:
        own: its own certificate, which those who trust it have as `ca`.
    """

    def __init__(self, name: str, now: datetime, lasts: timedelta) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject(name)
        builder = _builder(subject, subject, key, now, now + lasts)
        usage = _usage(signs_certificates=True)
        own = (
            builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(key, hashes.SHA256())
        )
        self.own = Issued(own, key)

    def __repr__(self) -> str:
        return f"<Authority {self.own!r}>"

    def issue(
        self, name: str, hosts: Iterable[str], now: datetime, lasts: timedelta, *, client: bool
    ) -> Issued:
        """Sign a certificate.

        Args:
            name: its common name.
            hosts: its subject alternative names: DNS names, addresses, and URIs.
            now: when it begins.
            lasts: for how long it is valid.
            client: whether it is a client's, or a server's.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = self.own.certificate.subject
        builder = _builder(_subject(name), issuer, key, now, now + lasts)
        purpose = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
        names = [_general_name(each) for each in hosts]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(
                    self.own.private_key.public_key()
                ),
                critical=False,
            )
            .sign(self.own.private_key, hashes.SHA256())
        )
        return Issued(certificate, key)

    def revoke(self, certificates: Iterable[Issued], now: datetime, lasts: timedelta) -> bytes:
        """Sign the list of revoked certificates, in PEM; all that are not on it are valid."""
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.own.certificate.subject)
            .last_update(now)
            .next_update(now + lasts)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(
                    self.own.private_key.public_key()
                ),
                critical=False,
            )
            .add_extension(x509.CRLNumber(int(now.timestamp())), critical=False)
        )
        for each in certificates:
            serial = each.certificate.serial_number
            entry = x509.RevokedCertificateBuilder(serial, now)
            builder = builder.add_revoked_certificate(entry.build())
        signed = builder.sign(self.own.private_key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    begins: datetime,
    ends: datetime,
) -> x509.CertificateBuilder:
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins - EARLIER)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(name: str) -> x509.GeneralName:
    if "://" in name:
        return x509.UniformResourceIdentifier(name)
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
