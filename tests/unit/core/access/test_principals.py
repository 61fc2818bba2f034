"""Who a certificate is of."""

import pytest

from memq.core.access.principals import certificate_principal, parse_mapping, producer_suffix

SUBJECT = ((("countryName", "DE"),), (("commonName", "Web-1"),))
CERTIFICATE = {
    "subject": SUBJECT,
    "subjectAltName": (("DNS", "web-1.example"), ("URI", "spiffe://prod/web"), ("DNS", "other")),
}


@pytest.mark.parametrize(
    ("certificate", "principal"),
    [
        (CERTIFICATE, "User:spiffe://prod/web"),
        (CERTIFICATE | {"subjectAltName": (("IP Address", "::1"), ("DNS", "d"))}, "User:d"),
        ({"subject": SUBJECT}, "User:Web-1"),
        ({"subject": ((("countryName", "DE"),),)}, None),
        ({}, None),
    ],
)
def test_a_uri_comes_before_a_dns_name_and_that_before_the_common_name(certificate, principal):
    """One without any of them is nobody's."""
    assert certificate_principal(certificate) == principal


@pytest.mark.parametrize(
    ("rules", "principal"),
    [
        ("DEFAULT", "User:spiffe://prod/web"),
        ("RULE:spiffe://prod/(.*)/$1/U", "User:WEB"),
        (["RULE:spiffe://test/(.*)/$1/", "RULE:(\\w+)://(\\w+)/(.*)/$3-$2/L"], "User:web-prod"),
        ("RULE:spiffe://pro/x/", None),
        ("RULE:(x)?.*/$1/", None),
        (["RULE:spiffe://test/.*/x/", "DEFAULT"], "User:spiffe://prod/web"),
    ],
)
def test_the_first_rule_that_matches_the_whole_name_decides(rules, principal):
    """A name that no rule matches, or that becomes empty, is nobody."""
    parsed = parse_mapping(rules)
    assert parse_mapping(parsed) == parsed
    assert certificate_principal(CERTIFICATE, parsed) == principal


@pytest.mark.parametrize("name", ["a\nb", "x" * 300, "alice ", "alice\u200b", "\u212aaren"])
def test_a_name_that_no_rule_could_have_is_nobody(name):
    """Nor one that another name could become."""
    certificate = {"subject": ((("commonName", name),),)}
    assert certificate_principal(certificate, parse_mapping("RULE:(?s:(.*))/$1/L")) is None


def test_principals_have_ids_of_their_own():
    """Producer ids of two principals begin differently, and always the same."""
    assert producer_suffix("User:alice") == "bd26178fddcf62e0"
    assert producer_suffix("User:bob") != producer_suffix("User:alice")
