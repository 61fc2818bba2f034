"""What `memq dev --secure` makes, and makes again."""

from memq.cli.dev_security import make_certificates


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
