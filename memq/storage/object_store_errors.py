"""What an object store says when it refuses, from the text that obstore makes of it.

obstore has one type for most errors, so status and code are found in its text.
"""

from __future__ import annotations

import re
from http import HTTPStatus

from obstore.exceptions import NotSupportedError

MAX_WORDS = 300  # characters of what a store says, in one of our messages

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]+)</Message>")
_NO_CONTAINER = re.compile(
    "<Code>(NoSuchBucket|ContainerNotFound)</Code>|>The specified bucket does not exist"
)
_HOST = re.compile(r"https?://[^/ ]+")
_PASSING = frozenset(
    ("RequestTimeout", "RequestTimeTooSkewed", "ExpiredToken", "OperationAborted", "SlowDown")
)
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")
_CAUSE = re.compile(r'"([^"\n]+)"')
_NO_HTTP = re.compile(r"hyper::Error\(\s*Parse\(")
_DEBUG = "\n\nDebug source"


def status_of(exc: BaseException) -> int:
    """HTTP status of the store's answer; 0 when there was none."""
    found = _STATUS.search(str(exc))
    return int(found[1]) if found else 0


def is_past_the_end(exc: BaseException) -> bool:
    """Whether an object ends before the range that was asked for."""
    return status_of(exc) == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE


def is_not_implemented(exc: BaseException) -> bool:
    """Whether the store does not know what was asked of it, such as a conditional put."""
    return (
        isinstance(exc, NotSupportedError | NotImplementedError)
        or status_of(exc) == HTTPStatus.NOT_IMPLEMENTED
    )


def is_no_container(exc: BaseException) -> bool:
    """Whether there is no such bucket: then nothing is known of its objects."""
    return _NO_CONTAINER.search(str(exc)) is not None


def is_refusal(exc: BaseException) -> bool:
    """Whether the store answered with an error that does not pass by itself."""
    text, status = str(exc), status_of(exc)
    if is_no_container(exc) or "Received redirect" in text:  # as for a bucket of another region
        return True
    code = _CODE.search(text)
    passing = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS)
    return (
        HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.INTERNAL_SERVER_ERROR
        and status not in passing
        and (code is None or code[1] not in _PASSING)
    )


def explain(exc: BaseException) -> str:
    """The store's own words, in one line and without those of the libraries around them."""
    text, _, debug = str(exc).partition(_DEBUG)
    code, message = _CODE.search(text), _MESSAGE.search(text)
    certificate, causes = _CERTIFICATE.search(debug), _CAUSE.findall(debug.partition("inner:")[2])
    if code is not None:
        words = f"{status_of(exc)} {code[1]}" + (f": {message[1]}" if message else "")
    elif certificate is not None:
        words = f"its certificate is not trusted ({certificate[1]})"
    elif _NO_HTTP.search(debug):
        words = f"{_host(text)} does not answer with HTTP, as a port that wants https://"
    elif "TimedOut" in debug:
        words = f"{_host(text)} did not answer in time"
    elif causes and not status_of(exc):  # "error sending request" says less than why
        words = f"{': '.join(causes)} ({_host(text)})"
    else:
        words = text.rpartition(" - ")[2]
    return " ".join(words.split())[:MAX_WORDS] or type(exc).__name__


def _host(text: str) -> str:
    """Whom the request was made to: the store, or who gives credentials for it."""
    found = _HOST.search(text)
    return found[0] if found else "the store"
