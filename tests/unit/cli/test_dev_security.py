"""What `memq dev --secure` makes, and makes again."""

import stat

from memq.broker.access_control import FILE
from memq.cli.dev_security import PASSWORD_FILE, make_admin, make_certificates
from memq.cli.serve import _secured
from memq.core.access.document import decode_document
from memq.core.access.users import new_user


def test_certificates_are_kept_while_they_fit(tmp_path):
    """A second start, also one by mistake, leaves them as they are; another name does not."""
    options = make_certificates(tmp_path, "127.0.0.1")
    files = [tmp_path / "tls" / f"{name}.pem" for name in ("ca", "broker", "broker-key")]
    before = [each.read_bytes() for each in files]
    assert [oct(each.stat().st_mode & 0o777) for each in files] == ["0o600"] * 3
    assert make_certificates(tmp_path, "127.0.0.1") == options
    assert [each.read_bytes() for each in files] == before
    make_certificates(tmp_path, "broker-1.example.com")
    assert [each.read_bytes() for each in files] != before


def test_the_administrator_is_kept_while_the_password_is_known(tmp_path):
    """A second start leaves the user; where the file with the password is gone, it has another."""
    options = make_admin(tmp_path)
    assert options == {"authentication": "required", "superusers": "User:admin"}
    paths = [tmp_path / PASSWORD_FILE, tmp_path / FILE]
    before = [each.read_bytes() for each in paths]
    assert [stat.S_IMODE(each.stat().st_mode) for each in paths] == [0o600, 0o600]
    assert make_admin(tmp_path) == options
    assert [each.read_bytes() for each in paths] == before
    paths[0].unlink()
    make_admin(tmp_path)
    found = decode_document(paths[1].read_bytes()).users["admin"]
    assert found == new_user("admin", paths[0].read_text(), found.salt)
    assert paths[0].read_bytes() != before[0]


def test_what_needs_authentication_may_be_set_beside_it(tmp_path):
    """A secure broker asks who its clients are, so it may lend them credentials."""
    lends = {"credentials_role": "arn:aws:iam::123456789012:role/readers", "storage": "s3://b/root"}
    made = _secured(lends | {"data_dir": str(tmp_path)})
    assert made["authentication"] == "required"
