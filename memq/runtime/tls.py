"""TLS of connections: contexts made of files, checked before they are used, and errors in words.

A context is made once for all connections of a listener, since loading CAs takes milliseconds. What
is wrong with the files is found when it is made: a key of another certificate, a certificate that
has expired, or one that does not have the name under which clients connect. So a reload that fails
leaves the old context in place.

Both sides speak TLS 1.2 or 1.3. Names of certificates are those of RFC 6125: subject alternative
names only.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import time
from typing import TYPE_CHECKING, NamedTuple, cast

from memq.errors import ConfigError, TlsError
from memq.runtime.files import explain

if TYPE_CHECKING:
    from collections.abc import Callable

PROTOCOL = "memq/1"  # as ALPN says it
SYSTEM_CA = "system"

_path = os.path.expanduser  # where there is no home, Path raises


class TlsFiles(NamedTuple):
    """Paths of the files that one side of TLS uses; empty for none.

    Attributes:
        ca: PEM of the CAs that the other side's certificate must be of; `system` for those of the
            operating system.
        cert: PEM of this side's certificate, followed by those of intermediate CAs.
        key: PEM of its private key, not encrypted.
        crl: PEM of certificates that the CA has revoked.
        prefix: of the names of the options that have them, for errors.
        peer: PEM of a certificate of the other side that is trusted as it is, beside those of `ca`.
    """

    ca: str = ""
    cert: str = ""
    key: str = ""
    crl: str = ""
    prefix: str = ""
    peer: str = ""

    def stamps(self) -> list[tuple[int, int, int] | None]:
        """Inode, time and size of each file: what changes when one is replaced."""
        return [_stamp(path) for path in self[:4]]


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """Make the context of clients, who check the broker's certificate and name.

    Raises:
        ConfigError: a file cannot be used; the message names it.
    """
    context = _context(ssl.PROTOCOL_TLS_CLIENT, files)
    context.hostname_checks_common_name = False
    if files.ca == SYSTEM_CA:
        context.load_default_certs()
    else:
        _load(files, "ca", context.load_verify_locations)
    if files.peer:
        _load(files, "peer", context.load_verify_locations)
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def server_context(files: TlsFiles, client_auth: str) -> ssl.SSLContext:
    """Make the context of a listener.

    Args:
        files: its certificate and key; the CA, where clients may have certificates of their own.
        client_auth: whether they may, or must: none, optional or required.

    Raises:
        ConfigError: a file cannot be used; the message names it.
    """
    if not (files.cert and files.key):
        raise ConfigError("TLS needs both tls_cert and tls_key: name the files of both")
    context = _context(ssl.PROTOCOL_TLS_SERVER, files)
    # A session that is taken up again would not look at the client's certificate again.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    if client_auth == "none":
        return context
    if not files.ca:
        raise ConfigError(
            f"client_auth = {client_auth} without tls_ca: name the CA that certificates of clients "
            "must be of"
        )
    context.minimum_version = ssl.TLSVersion.TLSv1_3  # 1.2 keeps sessions in the server as well
    context.verify_mode = ssl.CERT_REQUIRED if client_auth == "required" else ssl.CERT_OPTIONAL
    _load(files, "ca", context.load_verify_locations)
    return context


def _context(protocol: int, files: TlsFiles) -> ssl.SSLContext:
    """Make what both sides have."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.set_alpn_protocols([PROTOCOL])
    if files.crl:
        _load(files, "crl", context.load_verify_locations)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    if files.cert:
        _check_readable(files, "key")
        # An encrypted key would make OpenSSL ask at the terminal.
        _load(
            files,
            "cert",
            lambda path: context.load_cert_chain(
                path,
                files.key and _path(files.key),
                password=_no_password,
            ),
        )
    return context


def _no_password() -> str:
    raise ConfigError("the private key is encrypted; give it without a password, in mode 600")


def _load(files: TlsFiles, name: str, load: Callable[[str], object]) -> None:
    path = getattr(files, name)
    _check_readable(files, name)
    try:
        load(_path(path))
    except ssl.SSLError as exc:
        if exc.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"{files.prefix}key = {files.key} is not that of the certificate {path}"
            ) from exc
        both = f" or {files.prefix}key = {files.key}" if name == "cert" and files.key else ""
        raise ConfigError(
            f"{files.prefix}{name} = {path}{both} is no PEM of what it should hold: {exc}"
        ) from exc
    except OSError as exc:  # it was there a moment ago
        raise _unreadable(files, name, exc) from exc


def _unreadable(files: TlsFiles, name: str, error: OSError) -> ConfigError:
    path = getattr(files, name)
    return ConfigError(f"cannot read {files.prefix}{name} = {path}: {explain(error)}")


def _check_readable(files: TlsFiles, name: str) -> None:
    path = getattr(files, name)
    try:
        if path:
            with open(_path(path), "rb"):  # noqa: PTH123 - Path expands no ~ without a home
                pass
    except OSError as exc:
        raise _unreadable(files, name, exc) from exc


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(_path(path)) if path else None  # noqa: PTH116 - Path expands no ~ without a home
    except OSError:
        return None
    return found and (found.st_ino, found.st_ctime_ns, found.st_size)


# -- certificates -----------------------------------------------------------------------------

_NO_CHECK_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME, for which `ssl` has no name


def check_certificate(context: ssl.SSLContext, cert: str, host: str, now_s: float) -> float:
    """Check, as a client would, that a listener's certificate is valid now and for its name.

    OpenSSL decides about the name: a client that trusts the certificate shakes hands in memory.

    Args:
        context: of the listener.
        cert: path of its certificate.
        host: name or address under which clients connect.
        now_s: the time, seconds since 1970.

    Returns:
        When it expires, seconds since 1970.

    Raises:
        ConfigError: it is not.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.hostname_checks_common_name = False
    client.minimum_version = ssl.TLSVersion.TLSv1_3
    client.verify_flags = ssl.VerifyFlags(
        ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_STRICT | _NO_CHECK_TIME
    )
    try:
        client.load_verify_locations(_path(cert))
        found = _seen_by(client, context, host)
    except ssl.SSLError as exc:
        raise ConfigError(
            f"clients that connect to {host} refuse {cert}: {tls_error(exc)}"
        ) from exc
    except OSError as exc:  # it was there a moment ago
        raise ConfigError(f"cannot read the certificate {cert}: {explain(exc)}") from exc
    except ValueError as exc:
        raise ConfigError(f"{host!r} can be no name in a certificate: {exc}") from exc
    starts, ends = (str(found[name]) for name in ("notBefore", "notAfter"))
    ends_s = ssl.cert_time_to_seconds(ends)
    if not ssl.cert_time_to_seconds(starts) <= now_s <= ends_s:
        now = time.strftime("%b %d %H:%M:%S %Y", time.gmtime(now_s))
        raise ConfigError(
            f"the certificate {cert} is valid from {starts} to {ends}, and it is {now} GMT: renew "
            "it, or set the clock"
        )
    return ends_s


def _seen_by(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> dict[str, object]:
    """Shake hands in memory until the client has seen the certificate; return what it has."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server, server_hostname=host)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    for side in (asking, answering):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    asking.do_handshake()
    return cast("dict[str, object]", asking.getpeercert())


# -- errors -----------------------------------------------------------------------------------

_OF_CERTIFICATE = {  # by OpenSSL's number of what verification found
    9: "its certificate is not valid yet: compare the clocks of both machines",
    10: "its certificate has expired: renew it",
    18: "its certificate is signed by itself: name it, or the CA, in `ca`",
    19: "its certificate is of a CA that is not in `ca`",
    20: "its certificate is of a CA that is not in `ca`",
    23: "its certificate has been revoked",
    12: "the list of revoked certificates has expired: renew it",
    3: "there is no list of revoked certificates of its CA: add it to `crl`",
    62: "its certificate has another name; connect to that, or give it as `server_name`",
    64: "its certificate has another address; connect to that, or give a name as `server_name`",
}

_OF_HANDSHAKE = {  # by OpenSSL's name of the reason
    "WRONG_VERSION_NUMBER": "it does not speak TLS there: use the port of its TLS listener, or "
    "leave out `ca`",
    "UNSUPPORTED_PROTOCOL": "it speaks no TLS 1.2 or later: upgrade it",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it wants TLS 1.2 or later: upgrade this side",
    "NO_SHARED_CIPHER": "there is no cipher that both sides know",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it asks for a certificate: give `cert` and `key`",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it gave no certificate, which client_auth = required "
    "asks for: give it `cert` and `key`",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not know the CA of this side's certificate: `ca` and `cert` "
    "must be of CAs that the other side has",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it says that this side's certificate has expired or is not "
    "valid yet, or its own list of revoked ones has expired: renew `cert`, or see its log",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "it says that this side's certificate has been revoked: "
    "renew `cert`",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept this side's certificate, which may be one "
    "that is not valid yet: look at the dates of `cert`, or see its log",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not accept this side's certificate: see its log",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "it does not accept this side's certificate, which may "
    "be for other uses, such as a server's: see its log",
}

_OF_CLIENTS = _OF_HANDSHAKE | {  # of which a broker says otherwise
    "WRONG_VERSION_NUMBER": "it sent something else than TLS",
    "UNSUPPORTED_PROTOCOL": "it speaks no TLS 1.2 or later; no 1.3, where client_auth asks for it",
    "HTTP_REQUEST": "it speaks HTTP without TLS",
}


def tls_error(error: ssl.SSLError, *, of_client: bool = False) -> TlsError:
    """Make the error that says what is wrong with the other side, or what it says of this one."""
    if isinstance(error, ssl.SSLCertVerificationError):
        words = _OF_CERTIFICATE.get(error.verify_code, "its certificate is refused")
        return TlsError(f"{words} ({error.verify_message})")
    reason = error.reason or str(error)
    words = (_OF_CLIENTS if of_client else _OF_HANDSHAKE).get(reason, "TLS failed")
    return TlsError(f"{words} ({reason})")
