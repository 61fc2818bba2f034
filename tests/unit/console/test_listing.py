"""Lists that are sorted, filtered and cut by the address."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.console.listing import ROWS, listing


@dataclass
class Row:
    name: str
    lag: int | None = None


COLUMNS = ["name", "lag"]


def names(rows, **query):
    return [each.name for each in listing(rows, query, COLUMNS, ["name"]).rows]


def test_what_is_not_known_comes_last():
    """Whichever way a column is sorted, an unknown value is no smallest one, and 0 is a value."""
    rows = [Row("a", 5), Row("b", None), Row("c", 0), Row("d", 9)]
    assert names(rows, sort="lag") == ["c", "a", "d", "b"]
    assert names(rows, sort="lag", down="1") == ["d", "a", "c", "b"]


def test_names_are_found():
    """Only rows whose name has the text, in any case that the link keeps."""
    rows = [Row("clicks"), Row("rides"), Row("click-log")]
    found = listing(rows, {"find": "click"}, COLUMNS, ["name"])
    assert [each.name for each in found.rows] == ["click-log", "clicks"]
    assert found.total == 2
    assert "find=click" in found.link(sort="lag")


def test_a_list_has_pages():
    """Every row is on one page, and a page that is not there is the nearest one."""
    rows = [Row(f"{number:04}") for number in range(2 * ROWS + 1)]
    pages = [listing(rows, {"page": str(number)}, COLUMNS, ["name"]) for number in (1, 2, 3)]
    assert [each.name for page in pages for each in page.rows] == [each.name for each in rows]
    assert listing(rows, {"page": "99"}, COLUMNS, ["name"]).page == 3
    assert listing([], {"page": "2"}, COLUMNS, ["name"]).page == 1


def test_a_link_turns_the_order_round():
    """The link of the column that sorts turns it round; that of another begins with the most."""
    found = listing([], {"sort": "lag", "down": "1"}, COLUMNS, ["name"])
    assert "sort=lag&down=0" in found.link(sort="lag")
    assert "sort=name&down=1" in found.link(sort="name")


@pytest.mark.parametrize("page", ["", "0", "-1", "x", "٣", "9" * 50])
def test_what_makes_no_sense_is_left_out(page):
    """A strange page is the first, a strange column the first one."""
    found = listing([Row("a")], {"page": page, "sort": "__class__"}, COLUMNS, ["name"])
    assert (found.page, found.sort) == (1, "name")


@given(st.dictionaries(st.sampled_from(["sort", "down", "find", "page"]), st.text(max_size=20)))
def test_any_address_gives_a_page(query):
    """No query is an error, and links have nothing that ends an attribute."""
    found = listing([Row("a", 1), Row("b")], query, COLUMNS, ["name"])
    assert not set(found.link(sort="lag", page=2)) & set("\"'<>")
