"""What an Airflow connection says, and what it must not say."""

import pytest
from airflow.sdk import Connection

from airflow_provider_memq.settings import REQUEST_TIMEOUT_S, explain, settings_of
from memq.errors import ConfigError, InvalidRequestError, UnauthorizedError, UnavailableError


def settings(uri):
    return settings_of(Connection(conn_id="c", uri=uri))


@pytest.mark.parametrize(
    ("uri", "bootstrap"),
    [
        ("memq://127.0.0.1:6367", "127.0.0.1:6367"),
        ("memq://broker-1", "broker-1:6367"),
        ("memq://a:1?bootstrap=b:2,%20c:3", "a:1,b:2,c:3"),
        ("memq://?bootstrap=b:2", "b:2"),
        ("memq://[::1]:7000", "[::1]:7000"),
    ],
)
def test_brokers(uri, bootstrap):
    """Host and port, with 6367 where no port is given, and the brokers of the extra field."""
    assert settings(uri).bootstrap == bootstrap


def test_the_rest_of_it():
    """The password is the token; timeout and admin URL have defaults and can be given."""
    plain = settings("memq://:s%20ecret@a:1")
    full = settings("memq://a:1?request_timeout_s=2.5&admin_url=http%3A%2F%2Fx:9/&aws_conn_id=lake")

    assert plain.token == "s ecret"  # noqa: S105 - it protects nothing
    assert plain.request_timeout_s == REQUEST_TIMEOUT_S
    assert plain.admin_url == "http://a:6368"
    assert (full.token, full.request_timeout_s, full.admin_url) == ("", 2.5, "http://x:9")
    assert (plain.aws_conn_id, full.aws_conn_id) == ("", "lake")
    assert "ecret" not in repr(plain)


def test_what_tls_needs():
    """The extra field has it as text, as the form gives it, or as JSON."""
    text = settings("memq://a:1?security=ca%3D%2Fca.pem")
    extra = '{"security": {"ca": "/ca.pem"}}'
    table = Connection(conn_id="c", conn_type="memq", host="a", port=1, extra=extra)

    assert dict(text.security) == dict(settings_of(table).security) == {"ca": "/ca.pem"}


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("memq://", "names no broker"),
        ("memq://user@a:1", "has a login"),
        ("memq://a:1?security=cart%3Dx", "unknown option 'cart'"),
        ("memq://a:1/clicks", "'clicks'; it names brokers only"),
        ("memq://a:1?colour=red", "unknown field `colour`.* a JSON object of bootstrap"),
        ("memq://a:1?request_timeout_s=soon", "request_timeout_s"),
        ("memq://a:1?request_timeout_s=0", "> 0.0.*request_timeout_s"),
        ("memq://a:1?bootstrap=b", "connection 'c': .*b"),
        ("kafka://a:1", "of type 'kafka'; it must be 'memq'"),
        ("memq://a:1?__extra__=nonsense", "malformed"),
        ("memq://a:1?__extra__=" + "%5B" * 10_000, "must be a JSON object"),
        ("memq://a:1?__extra__=%5B1%5D", "must be a JSON object"),
    ],
)
def test_what_it_must_not_say(uri, message):
    """Each field that is wrong or has no meaning is refused, with the connection's name."""
    with pytest.raises(ConfigError, match=message) as refused:
        settings(uri)

    assert "'c'" in str(refused.value)


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (
            UnauthorizedError("no"),
            "connection 'c': no; see its login, password and extra 'security'",
        ),
        (UnavailableError("no"), "connection 'c': no; check its host and port"),
        (InvalidRequestError("no"), "connection 'c': no"),
    ],
)
def test_errors_name_the_connection(error, hint):
    """An error that comes of a wrong connection says which, and what to look at."""
    assert explain("c", error).startswith(hint)
