"""A topic's name, its options and how write partitions share the read partitions."""

from collections import Counter
from math import ceil

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memq.core.topic import MAX_TOPIC_NAME, TOPIC_OPTIONS, TopicConfig
from memq.errors import ConfigError, InvalidRequestError, MemqError

PARTITIONS = st.integers(min_value=1, max_value=256)
ODD_NAMES = ("self", "cls", "name", "no_such")
NUMBERS = [option for option in TOPIC_OPTIONS if option.kind in ("duration", "size", "count")]


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "-x", "a/b", "a b", "a\n", "a\x00", "é", "x" * (MAX_TOPIC_NAME + 1)],
)
def test_bad_name(name):
    """Whatever could leave its folder, or break a key or a command line, is no name."""
    with pytest.raises(InvalidRequestError, match="is not valid: use 1 to 200 of letters"):
        TopicConfig.create(name)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            {"batch_bytes": "1MiB"},
            "message_bytes = 4MiB exceeds batch_bytes = 1MiB: a Message must fit into a Batch",
        ),
        (
            {"dedup_window": "30200ms"},
            "dedup_window = 30200ms must exceed batch_age + upload_deadline = 30200ms",
        ),
        *(({name: "1"}, f"unknown option '{name}'") for name in ODD_NAMES),
        ({"retention": "1m"}, "retention = 1m must be at least dedup_window = 1h"),
    ],
)
def test_options_that_do_not_fit_together(options, complaint):
    """Two good values that break a promise together are refused, with both of them named.

    So is an option that is called like a Python parameter.
    """
    with pytest.raises(ConfigError) as caught:
        TopicConfig.create("clicks", **options)

    assert str(caught.value).startswith(complaint)


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("read_partitions", 3, "read_partitions of 'clicks' is fixed at 2"),
        ("write_partitions", 1, "write_partitions of 'clicks' cannot shrink from 2 to 1"),
        ("ordering", "producer", "ordering of 'clicks' is fixed at 'none'"),
        ("retention", "1m", "retention = 1m must be at least dedup_window = 1h"),
        *((name, "1", f"unknown option '{name}'") for name in ODD_NAMES),
    ],
)
def test_what_cannot_be_altered(option, value, complaint):
    """Changes that would move data or break a promise are refused."""
    config = TopicConfig.create("clicks", read_partitions=2, write_partitions=2)

    with pytest.raises(ConfigError, match=complaint):
        config.altered(**{option: value})


@pytest.mark.parametrize(
    ("field", "hostile"),
    [(each.field, value) for each in NUMBERS for value in (-1, 2**63)] + [("ordering", "no such")],
)
def test_fields_from_a_peer_are_checked(field, hostile):
    """A configuration that arrives as plain fields passes the same limits as a written one."""
    config = msgspec.structs.replace(TopicConfig.create("clicks"), **{field: hostile})
    with pytest.raises(ConfigError, match="must be"):
        config.checked()


@given(
    st.dictionaries(
        st.sampled_from([option.name for option in TOPIC_OPTIONS]) | st.text(max_size=8),
        st.text(max_size=8) | st.integers() | st.booleans(),
        max_size=4,
    )
)
def test_any_options_make_a_topic_or_are_refused(options):
    """Whatever a peer asks for is a checked configuration or a typed error."""
    try:
        config = TopicConfig.create("clicks", **{k: v for k, v in options.items() if k != "schema"})
    except MemqError:
        return
    encoded = msgspec.msgpack.encode(config)
    assert msgspec.msgpack.decode(encoded, type=TopicConfig).checked() == config


@given(PARTITIONS, PARTITIONS)
def test_write_partitions_share_the_read_partitions(writes, reads):
    """Every read partition is fed, and as evenly as the numbers allow."""
    config = TopicConfig.create("clicks", write_partitions=writes, read_partitions=reads)

    shares = [config.read_partitions_of(partition) for partition in range(writes)]

    assert all(shares)
    feeders = Counter(partition for share in shares for partition in share)
    assert set(feeders) == set(range(reads))
    assert max(feeders.values()) == ceil(writes / reads)
    assert max(len(share) for share in shares) == ceil(reads / writes)


@given(PARTITIONS, PARTITIONS, st.data())
def test_an_ordered_write_partition_keeps_its_read_partition(writes, reads, data):
    """Growing a topic never moves a producer's Messages to another read partition."""
    config = TopicConfig.create(
        "clicks", write_partitions=writes, read_partitions=reads, ordering="producer"
    )
    grown = config.altered(write_partitions=data.draw(st.integers(writes, 256)))

    for partition in range(writes):
        pinned = config.read_partitions_of(partition)
        assert len(pinned) == 1
        assert grown.read_partitions_of(partition) == pinned
