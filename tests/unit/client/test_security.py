"""What the option `security` says, and what it must not say."""

import pytest

from memq.client.security import PLAIN, Security
from memq.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("cart=x", "unknown option 'cart'; known are aws_iam, ca, cert, key"),
        ("cert=x", "cert without ca"),
        ("ca=x,key=y", "key without cert"),
        ("server_name=x", "server_name without ca"),
        ("password=x", "password without user"),
        ("user=a", "a user needs a password, or a password_file"),
        ("user=a,password=b,password_file=c", "a user needs a password, or a password_file"),
        ("user=a,password=b,token_file=c", "user and token_file; leave out all but one"),
        ("ca=x,token_file=c,aws_iam=d", "token_file and aws_iam; leave out all but one"),
        ("aws_iam=memq", "aws_iam without ca"),
        ("ca=", "ca is empty; give it, or leave it out"),
        (3, "expected NAME=VALUE"),
    ],
)
def test_what_does_not_fit_together_is_refused(given, message):
    """The error names what is missing, and no value."""
    with pytest.raises(ConfigError, match=message):
        Security.parse(given)


def test_nothing_is_plain():
    """Without a CA there is no TLS."""
    assert Security.parse("") == PLAIN
    assert PLAIN.context() is None


def test_files_that_cannot_be_used_are_named(tmp_path):
    """A CA that is missing, or is no certificate."""
    with pytest.raises(ConfigError, match="cannot read ca = /none"):
        Security.parse("ca=/none").context()
    path = tmp_path / "ca.pem"
    path.write_text("nonsense")
    with pytest.raises(ConfigError, match=r"ca = .*ca\.pem is no PEM of what it should"):
        Security.parse({"ca": str(path)}).context()


def test_secrets_are_read_from_files_and_shown_nowhere(tmp_path):
    """Without the line's end; a file that is missing or empty is named."""
    path = tmp_path / "secret"
    path.write_text("correct horse\n")
    found = Security.parse({"user": "ann", "password_file": str(path)})
    assert found.secret() == "correct horse"
    assert Security.parse({"token_file": str(path)}).token() == "correct horse"
    assert repr(Security.parse("user=ann,password=secret")) == "<Security plain, ann>"
    path.write_text("\n")
    for content, said in ((b"\n", "is empty"), (b"\xff", "is not UTF-8"), (None, "cannot read")):
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(ConfigError, match=f"password_file.*{said}|cannot read password_file"):
            found.secret()
