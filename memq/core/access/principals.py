"""Who the subject of a certificate is: rules that map its name to a principal, as Kafka's do.

The name is the first that the certificate has of: a URI among its subject alternative names, as
SPIFFE has it; a DNS name there; the common name of its subject. The first rule whose pattern is the
whole name decides:

    RULE:spiffe://prod/(.*)/$1/L      what the pattern found, in lower case; or U for upper case
    DEFAULT                           the name as it is

With rules, a name that none matches is nobody.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from memq.core.access.rules import check_principal
from memq.errors import ConfigError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ANONYMOUS = "User:anonymous"
"""Who came by a listener that asks nobody."""

TOKEN_USER = "User:token"  # noqa: S105 - a name
"""Who has a token without a name."""

ID_DIGITS = 32
"""Of a producer id that a client makes up."""

SUFFIX_DIGITS = 16
"""Of these, those at the end, which tell whose it is."""

_RULE = re.compile(r"RULE:(?P<pattern>.+)/(?P<replacement>[^/]*)/(?P<case>[LU]?)")
_GROUP = re.compile(r"\$([0-9])")


class MappingRule(NamedTuple):
    """One rule; see above."""

    pattern: re.Pattern[str]
    replacement: str
    case: str


_DEFAULT = MappingRule(re.compile(r"(.*)", re.DOTALL), "$1", "")


def parse_mapping(value: object) -> tuple[MappingRule, ...]:
    """Parse the rules of a configuration: a text is one, a list has several.

    Raises:
        ConfigError: one is malformed.
    """
    if value in ("", (), []):
        return ()
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, list | tuple):
        raise ConfigError("certificate_principals must be a text, or a list of texts")
    return tuple(each if isinstance(each, MappingRule) else _parse(each) for each in texts)


def _parse(text: object) -> MappingRule:
    if text == "DEFAULT":
        return _DEFAULT
    match = _RULE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ConfigError(
            f"certificate_principals: {text!r} is no rule; write RULE:PATTERN/REPLACEMENT/, with "
            "L or U after it for lower or upper case, or DEFAULT"
        )
    try:
        pattern = re.compile(match["pattern"])
    except re.error as exc:
        raise ConfigError(f"certificate_principals: {text!r} is no pattern: {exc}") from exc
    highest = max([int(each) for each in _GROUP.findall(match["replacement"])], default=0)
    if highest > pattern.groups:
        raise ConfigError(f"certificate_principals: {text!r} has no group ${highest}")
    return MappingRule(pattern, match["replacement"], match["case"])


def certificate_principal(
    certificate: Mapping[str, Any], rules: Sequence[MappingRule] = ()
) -> str | None:
    """Return whom a certificate is of, as `ssl` describes it; None for nobody."""
    name = _name_in(certificate)
    for rule in rules or (_DEFAULT,):
        if match := rule.pattern.fullmatch(name):
            return _principal(match, rule)
    return None


def _principal(match: re.Match[str], rule: MappingRule) -> str | None:
    found = _GROUP.sub(lambda group: match[int(group[1])] or "", rule.replacement)
    if rule.case and not found.isascii():
        return None  # two names could become one
    principal = f"User:{({'L': found.lower(), 'U': found.upper()}).get(rule.case, found)}"
    try:
        check_principal(principal)
    except InvalidRequestError:
        return None  # no rule could be about it
    return principal if found else None


def _name_in(certificate: Mapping[str, Any]) -> str:
    others = certificate.get("subjectAltName", ())
    for kind in ("URI", "DNS"):
        for found, value in others:
            if found == kind:
                return str(value)
    for parts in certificate.get("subject", ()):
        for key, value in parts:
            if key == "commonName":
                return str(value)
    return ""


def producer_suffix(principal: str) -> str:
    """Return what the random producer ids of a principal end with; nobody else may use those."""
    return hashlib.sha256(principal.encode()).hexdigest()[:SUFFIX_DIGITS]
