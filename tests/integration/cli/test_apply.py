"""`memq apply`: topics become what a file says, or nothing changes."""

import json
import sys

import pytest

from memq import AdminClient


def shown(memq, *arguments):
    """What is to change, by topic and option."""
    return {
        (row["topic"], row["option"]): (row["now"], row["wanted"])
        for row in json.loads(memq("apply", *arguments, "-o", "json") or "[]")
    }


FILES = {
    "toml": """
[topics."NAME"]
retention = "30d"
write_partitions = 2
audited = false
[topics.NAME-typed]
schema = "id:int64,name:string?"
[topics.NAME-plain]
""",
    "yaml": """
topics:
  NAME: {retention: 30d, write_partitions: 2, audited: false}
  NAME-typed: {schema: "id:int64,name:string?"}
  NAME-plain:
""",
    "json": """
{"topics": {"NAME": {"retention": "30d", "write_partitions": 2, "audited": false},
 "NAME-typed": {"schema": "id:int64,name:string?"}, "NAME-plain": {}}}
""",
}


@pytest.mark.parametrize("form", FILES)
def test_topics_become_what_a_file_says(memq, topic, broker, tmp_path, form):
    """What differs is made or altered, once; what the file does not say stays."""
    path = tmp_path / f"topics.{form}"
    path.write_text(FILES[form].replace("NAME", topic))
    expected = {
        (topic, "retention"): ("7d", "30d"),
        (topic, "write_partitions"): ("1", "2"),
        (f"{topic}-typed", "schema"): ("", "new"),
        (f"{topic}-plain", ""): ("", "new"),
    }
    assert memq("apply", path, "--dry-run", code=3) == ""
    with AdminClient(broker.address) as admin:
        before = admin.describe_topic(topic)
        assert [each.config.name for each in admin.list_topics() if topic in each.config.name] == [
            topic
        ]
        assert shown(memq, path) == expected
        assert shown(memq, path) == shown(memq, path, "--dry-run") == {}
        config = admin.describe_topic(topic).config
        assert (config.retention_ms, config.write_partitions) == (30 * 86_400_000, 2)
        assert config.batch_age_ms == before.config.batch_age_ms == 20
        described = json.loads(memq("topic", "describe", f"{topic}-typed", "-o", "json"))
        assert [each["name"] for each in described["schema"]] == ["id", "name"]
    path.write_text(
        json.dumps({"topics": {f"{topic}-typed": {"schema": "id:int64,name:string?,more:bool?"}}})
    )
    grown = path.rename(tmp_path / "grown.json")
    assert shown(memq, grown) == {(f"{topic}-typed", "schema"): ("", "changed")}
    assert shown(memq, grown) == {}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ('{"topics": {"A-first": {}, "T": {"read_partitions": 4}}}', "read_partitions of"),
        ('{"topics": {"A-first": {}, "T": {"write_partitions": 0}}}', "must be at least 1"),
        ('{"topics": {"A-first": {}, "T": {"nosuch": 1}}}', "unknown option 'nosuch'"),
        ('{"topics": {"A-first": {}, "T": {"retention": 5}}}', "expected a duration"),
        ('{"topics": {"A-first": {}, "T": {"schema": "id:int64"}}}', "has the default schema"),
        ('{"topics": {"A-first": {}, "no/name": {}}}', "is not valid"),
        ('{"topics": {"A-first": {}, "T": []}}', "Expected `object | null`, got `array`"),
        ('{"topics": {"A-first": {}, "T": {"retention": {}}}}', "Expected `bool | int | str`"),
        ('{"topic": {"A-first": {}}}', "Object contains unknown field `topic`"),
        ("{", "Expecting property name"),
        ('{"topics": ' + "[" * 100_000, "topics.json: "),
    ],
)
def test_what_cannot_be_done_is_named_before_anything_is(memq, topic, tmp_path, given, says):
    """The topic before it is not made either."""
    path = tmp_path / "topics.json"
    path.write_text(given.replace("A-first", f"{topic}-first").replace('"T"', f'"{topic}"'))
    before = memq("topic", "list")
    for more in ((), ("--dry-run",)):
        error = memq("apply", path, *more, code=1)
        assert says in error
        assert error.count("\n") == 1
    assert memq("topic", "list") == before


def test_yaml_without_its_library(memq, tmp_path, monkeypatch):
    """The error names it, and the other forms."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    path = tmp_path / "topics.yaml"
    path.write_text("topics: {}")
    assert "pip install pyyaml" in memq("apply", path, code=1)


@pytest.mark.parametrize("text", ["topics: [", "a: b: c", "- 1"])
def test_yaml_that_is_none(memq, tmp_path, text):
    """One line says where."""
    path = tmp_path / "topics.yaml"
    path.write_text(text)
    error = memq("apply", path, code=1)
    assert "topics.yaml: " in error
    assert error.count("\n") == 1
