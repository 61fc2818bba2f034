import pytest

from memq.core.governor.assignment import BrokerResources, PartitionLoad
from memq.core.governor.assignor import CheckedAssignor, load_assignor
from memq.errors import ConfigError

BROKERS = [BrokerResources("a"), BrokerResources("b"), BrokerResources("c", accepting=False)]
PARTITIONS = [PartitionLoad("t", number) for number in range(4)]
ALL = [each.partition for each in PARTITIONS]


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a package with an entry point, as pip leaves it."""

    def installed(code, name="by-tenant"):
        (tmp_path / "tenants.py").write_text(code)
        info = tmp_path / "tenants-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tenants\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[memq.assignors]\n{name} = tenants:assign\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(__import__("sys").modules, "tenants", raising=False)

    return installed


def test_a_package_can_bring_another_one(install):
    """It is found by its entry point, and gets brokers, write partitions and present owners."""
    install(
        "def assign(brokers, partitions, present):\n"
        "    last = max(each.id for each in brokers if each.accepting)\n"
        "    return {(each.topic, each.write_partition): last for each in partitions}\n"
    )
    assignor = load_assignor("by-tenant")
    assert assignor.assign(BROKERS, PARTITIONS, {}) == dict.fromkeys(ALL, "b")
    assert "by-tenant" in repr(assignor)


@pytest.mark.parametrize(
    ("code", "name", "match"),
    [
        ("", "by-day", r"'by-tenant': no installed package .* balanced, by-day"),
        ("import nowhere_to_be_found", "by-tenant", "cannot be loaded from tenants:assign"),
        ("", "by-tenant", "cannot be loaded from tenants:assign"),
        ("assign = 7", "by-tenant", "is int, not a function"),
    ],
)
def test_one_that_cannot_be_loaded_is_refused(install, code, name, match):
    """The error says which there are; where it should be, and why it is not."""
    install(code, name)
    with pytest.raises(ConfigError, match=match):
        load_assignor("by-tenant")


@pytest.mark.parametrize(
    ("returned", "match"),
    [
        (None, "'wrong' fails: KeyError"),
        (7, "returns int"),
        ([(("t", 0), "a")], "returns list"),
        (dict.fromkeys(ALL[1:], "a"), r"gives \('t', 0\) the owner None"),
        (dict.fromkeys(ALL, "c"), "'c', which is no broker that accepts"),
        (dict.fromkeys(ALL, "nobody"), "'nobody', which is no broker that accepts"),
        ({key: ["a"] for key in ALL}, r"\['a'\], which is no broker that accepts"),
        (dict.fromkeys([*ALL, ("u", 0)], "a"), r"\('u', 0\), which is no write partition"),
    ],
)
def test_nonsense_is_refused(returned, match):
    """Every write partition must be given, each to a broker that accepts, and no others."""
    assignor = CheckedAssignor("wrong", lambda *_: returned or {}["tenant"])
    with pytest.raises(ConfigError, match=match):
        assignor.assign(BROKERS, PARTITIONS, {})
    with pytest.raises(ConfigError, match=match):
        assignor.rebalance(BROKERS, PARTITIONS, {}, max_moves=1, tolerance=0.1)


def test_what_it_wants_elsewhere_moves_in_a_rebalancing():
    """What has an owner stays in an assignment; a rebalancing moves so many, leavers first."""
    assignor = CheckedAssignor("b", lambda *_: dict.fromkeys(ALL, "b"))
    present = {("t", 0): "a", ("t", 1): "a", ("t", 2): "c", ("t", 3): "gone"}
    found = assignor.assign(BROKERS, PARTITIONS, present)
    assert found == {("t", 0): "a", ("t", 1): "a", ("t", 2): "b", ("t", 3): "b"}
    moves = assignor.rebalance(BROKERS, PARTITIONS, present, max_moves=2, tolerance=0.1)
    assert moves == {("t", 2): "b", ("t", 0): "b"}
