"""What an object store's words are taken for."""

from __future__ import annotations

import pytest
from obstore.exceptions import GenericError

from memq.storage.object_store_errors import (
    MAX_WORDS,
    explain,
    is_refusal,
)


def said(status, code="", message="", kind=GenericError):
    """An answer with a status, as the client library shows it."""
    body = f"<Error><Code>{code}</Code>" * bool(code) + f"<Message>{message}</Message>" * bool(
        message
    )
    return kind(f"Generic S3 error: Server returned non-2xx status code: {status}: {body}")


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (said(400), True),
        (said(400, "RequestTimeout"), False),
        (said(403, "AccessDenied"), True),
        (said(404, "NoSuchKey", kind=FileNotFoundError), True),
        (said(404, "NoSuchBucket"), True),
        (said(408), False),
        (said(429), False),
        (said(301, "PermanentRedirect"), True),
        (GenericError("Received redirect without LOCATION, from another region"), True),
        (said(500), False),
        (said(500, "NoSuchBucket"), True),
        (said(503, "SlowDown"), False),
        (GenericError("error sending request"), False),
        (TimeoutError(), False),
    ],
    ids=str,
)
def test_a_refusal_is_an_answer_that_does_not_pass(error, refused):
    """What the store will say again the next time, and not that it is busy, late or away."""
    assert is_refusal(error) is refused


DEBUG = (
    "Generic S3 error: error sending request\n\nDebug source: HttpError { url: https://s3:9000/b/k"
)
"""How an error begins that has no answer of the store."""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (str(said(503, "SlowDown", "Reduce\nyour rate.")), "503 SlowDown: Reduce your rate."),
        (
            f"Get https://s3:9000/b/k{DEBUG}, inner: InvalidCertificate( UnknownIssuer)",
            "its certificate is not trusted (UnknownIssuer)",
        ),
        (
            f"Get http://s3:9000/b/k{DEBUG}, inner: hyper::Error( Parse(Version))",
            "http://s3:9000 does not answer with HTTP, as a port that wants https://",
        ),
        (
            f'Get http://s3:9000/b{DEBUG}, inner: ConnectError("tcp", "refused")',
            "tcp: refused (http://s3:9000)",
        ),
        (
            f'no host{DEBUG}, inner: ConnectError("dns error", "no such")',
            "dns error: no such (the store)",
        ),
        (
            "Generic S3 error: after 0 retries - status code: 500: \n nothing",
            "status code: 500: nothing",
        ),
        ("", "GenericError"),
        ("x" * 999, "x" * MAX_WORDS),
    ],
)
def test_errors_are_told_in_the_words_of_the_store(text, words):
    """In one line; or why there was no answer, and of whom."""
    assert explain(GenericError(text)) == words
