"""What `memq dev --secure` makes: an authority, a certificate, an administrator, and a profile.

All of it lies in the data directory. Nothing keeps the authority's key: where the certificate ends
soon, or has other names, both are made again. Clients take the new one at their next connection.
The administrator's password is random, and stands in a file beside the profile, which names it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from memq.broker.access_control import FILE, write_document
from memq.core.access.document import SECRET_BYTES, AccessDocument, decode_document
from memq.core.access.users import SALT_BYTES, new_user
from memq.core.defaults import DEFAULT_HOST
from memq.errors import ConfigError
from memq.runtime.files import replace_durably
from memq.runtime.system import SYSTEM
from memq.runtime.tls import TlsFiles, check_certificate, client_context, server_context

if TYPE_CHECKING:
    from pathlib import Path

LASTS = timedelta(days=90)
_PROFILE = """\
[profiles.default]
bootstrap = "{address}"

[profiles.default.security]
ca = "tls/ca.pem"
user = "admin"
password_file = "admin.password"
"""
ADMIN = "admin"
PASSWORD_FILE = "admin.password"  # noqa: S105 - a name
PASSWORD_BYTES = 16


def make_certificates(data_dir: Path, host: str) -> dict[str, str]:
    """Make the authority and the broker's certificate; return the broker's options.

    Raises:
        OSError: the files cannot be written.
    """
    folder = data_dir / "tls"
    folder.mkdir(parents=True, exist_ok=True)
    ca, cert, key = (str(folder / f"{name}.pem") for name in ("ca", "broker", "broker-key"))
    now_s = SYSTEM.wall_ms() / 1_000
    try:
        client_context(TlsFiles(ca))
        context = server_context(TlsFiles(ca, cert, key), "none")
        check_certificate(context, cert, host, now_s + LASTS.total_seconds() / 3)
    except ConfigError:
        _make(folder, host, datetime.fromtimestamp(now_s, UTC))
    return {"tls_cert": cert, "tls_key": key, "admin_tls": "true", "console_ca": ca}


def _make(folder: Path, host: str, now: datetime) -> None:
    from memq.runtime.certificates import Authority  # noqa: PLC0415 - loads OpenSSL

    authority = Authority("memq dev", now, LASTS)
    hosts = list(dict.fromkeys([host, DEFAULT_HOST, "localhost"]))
    issued = authority.issue("broker", hosts, now, LASTS, client=False)
    files = {"ca": authority.own.cert, "broker": issued.cert, "broker-key": issued.key}
    for name, content in files.items():
        new = folder / f"{name}.new"
        new.unlink(missing_ok=True)
        new.touch(mode=0o600)
        new.write_bytes(content)
    for name in files:
        (folder / f"{name}.new").rename(folder / f"{name}.pem")


def make_admin(data_dir: Path) -> dict[str, str]:
    """Make a user who may do everything, with a password in a file; return the broker's options.

    Raises:
        OSError: the file cannot be written.
        MemqError: what is stored about users is damaged.
    """
    path, users = data_dir / PASSWORD_FILE, data_dir / FILE
    document = AccessDocument(secret=bytes.fromhex(SYSTEM.token_hex(SECRET_BYTES)))
    if users.exists():
        document = decode_document(users.read_bytes())
    if not path.exists() or ADMIN not in document.users:
        password = SYSTEM.token_hex(PASSWORD_BYTES)
        salt = bytes.fromhex(SYSTEM.token_hex(SALT_BYTES))
        user = new_user(ADMIN, password, salt)
        replace_durably(path, password.encode(), mode=0o600)
        write_document(users, document.with_user(user, replace=ADMIN in document.users))
    return {"authentication": "required", "superusers": f"User:{ADMIN}"}


def write_profile(data_dir: Path, address: str) -> Path:
    """Write the profile of clients on this machine; return its file.

    Raises:
        OSError: it cannot be written.
    """
    path = data_dir.absolute() / "memq.toml"
    path.write_text(_PROFILE.format(address=address))
    path.chmod(0o600)
    return path
