import json

import pytest

from memq.bigqueue import BigArray
from memq.errors import ConfigError, CorruptDataError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"page_bytes": 4095}, "page_bytes=4095"),
        ({"page_bytes": (1 << 30) + 1}, "1073741824"),
        ({"index_page_items": 0}, "index_page_items=0"),
        ({"max_mapped_pages": 3}, "max_mapped_pages=3"),
        ({"page_ttl_s": 0}, "page_ttl_s=0"),
        ({"sync": "always"}, "none, batch, each"),
    ],
)
def test_options_out_of_their_limits_are_refused(tmp_path, options, message):
    """Each option outside its limits is a ConfigError that names value and limit."""
    with pytest.raises(ConfigError, match=message):
        BigArray(tmp_path / "new", **options)


def test_another_format_version_is_refused(tmp_path):
    """Files of a later format are left alone."""
    BigArray(tmp_path).close()
    file = tmp_path / "meta.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 2}))

    with pytest.raises(ConfigError, match="format 2"):
        BigArray(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1}', '{"format": "x"}'])
def test_damaged_metadata_is_named(tmp_path, content):
    """Metadata that cannot be understood is a CorruptDataError that names the file."""
    BigArray(tmp_path).close()
    (tmp_path / "meta.json").write_text(content)

    with pytest.raises(CorruptDataError, match=r"meta\.json"):
        BigArray(tmp_path)


def test_lost_metadata_is_not_taken_for_a_new_array(tmp_path, small):
    """Pages without metadata are not overwritten: the sizes would be a guess."""
    with BigArray(tmp_path, **small) as array:
        array.append(b"precious")
    (tmp_path / "meta.json").unlink()

    with pytest.raises(CorruptDataError, match="restore it"):
        BigArray(tmp_path, **small)
