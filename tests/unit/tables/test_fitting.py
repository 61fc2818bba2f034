"""Casts to structs that may be null and have fields that are not."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.tables.fitting import cast

LOOSE = pa.struct([("a", pa.int64()), ("b", pa.large_string())])
STRICT = pa.struct([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.string())])
SHAPES = {
    "struct": lambda kind: kind,
    "list": pa.list_,
    "large list": pa.large_list,
    "map": lambda kind: pa.map_(pa.string(), kind),
    "struct in a list in a struct": lambda kind: pa.struct([("l", pa.list_(kind))]),
}


def a_struct(field):
    return st.none() | st.fixed_dictionaries({"a": field, "b": st.none() | st.text(max_size=3)})


def in_shape(shape, one):
    several = st.none() | st.lists(one, max_size=3)
    return {
        "struct": one,
        "list": several,
        "large list": several,
        "map": st.none() | st.dictionaries(st.text(max_size=2), one, max_size=3).map(_items),
        "struct in a list in a struct": st.none() | st.fixed_dictionaries({"l": several}),
    }[shape]


def _items(found):
    return list(found.items())


@pytest.mark.parametrize("shape", SHAPES)
@given(data=st.data())
def test_values_and_nulls_stay_what_they_are(shape, data):
    """Also those of a piece of an array, and with a null below a null."""
    values = data.draw(st.lists(in_shape(shape, a_struct(st.integers(0, 9))), max_size=6))
    start = data.draw(st.integers(0, len(values)))
    column = below_null(pa.array(values, SHAPES[shape](LOOSE)))

    found = cast(column.slice(start), SHAPES[shape](STRICT))

    found.validate(full=True)
    assert found.type.equals(SHAPES[shape](STRICT))
    assert found.to_pylist() == values[start:]
    again = pa.array(values[start:], SHAPES[shape](STRICT))
    assert found.equals(again)


def below_null(column):
    """Nulls below the nulls of structs, where Arrow's builder has put values."""
    if not pa.types.is_struct(column.type):
        return column
    fields = [
        pa.array([None if row is None else row[each.name] for row in column.to_pylist()], each.type)
        for each in column.type
    ]
    return pa.StructArray.from_arrays(fields, fields=list(column.type), mask=column.is_null())


@pytest.mark.parametrize(
    ("shape", "values"),
    [
        ("struct", [{"a": None}]),
        ("list", [[None, {"a": 1}, {"a": None}]]),
        ("map", [[("k", {"a": None})]]),
        ("struct in a list in a struct", [None, {"l": [{"a": None}]}]),
    ],
)
def test_a_null_that_may_not_be(shape, values):
    """A field that is null, and may not be, of a struct that is there, is refused."""
    column = pa.array(values, SHAPES[shape](LOOSE))

    with pytest.raises(pa.ArrowInvalid, match="field 'a' is null in 1 value"):
        cast(column, SHAPES[shape](STRICT))
