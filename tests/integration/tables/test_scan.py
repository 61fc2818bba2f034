"""One read over a table and its topic: no gap, no overlap, whatever is committed meanwhile."""

from contextlib import closing

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from memq import read_range, scan
from memq.errors import ConfigError, DataLossError
from memq.tables.commit import Written, commit_range
from tests.integration.tables.topic_lake import ROWS, SCHEMA, TopicLake


@pytest.fixture
def lake(broker, tmp_path):
    return TopicLake(broker.address, tmp_path)


def test_the_rest_comes_from_batches(lake):
    """Holes of the table are filled from the topic, and every row comes once, as it was written."""
    lake.produce(8)
    for start, end in [(1, 3), (5, 6)]:
        lake.put(start, end)

    table = lake.scan().read_all()

    assert table.schema.equals(SCHEMA)
    plain = read_range(lake.address, topic=lake.topic)
    assert table.sort_by("n").equals(plain.sort_by("n"))
    assert lake.numbers() == list(range(8 * ROWS))


@pytest.mark.parametrize("until", [0, 4, 6])
def test_pinned(lake, until):
    """Up to an offset, whichever side it lies in; what is published or put in later is not read."""
    lake.produce(6)
    lake.put(1, 4)
    lake.put(4, 5)
    opened = lake.scan(until={0: until})
    lake.produce(1)
    lake.put(0, 1)
    lake.put(5, 6)

    assert sorted(opened.read_all()["n"].to_pylist()) == list(range(until * ROWS))
    assert lake.numbers(until={0: until}) == list(range(until * ROWS))


def test_a_topic_that_was_made_anew(lake):
    """Rows of another topic id, or of another topic, are not its rows, though its offsets are
    the same.
    """
    lake.produce(3)
    lake.put(0, 2)
    lake.recreate()
    lake.produce(2)
    lake.put(1, 2)

    assert lake.numbers() == list(range(1_000, 1_020))
    other = TopicLake(lake.address, lake.folder)
    other.produce(1)
    read = scan(lake.address, topic=other.topic, table=lake.table).read_all()
    assert sorted(read["n"].to_pylist()) == list(range(ROWS))


def test_a_topic_that_has_lost_what_the_table_has(lake):
    """Its offsets name other data now than in the table; nothing is hidden behind the other."""
    lake.produce(3)
    lake.put(0, 3)
    there = lake.range(3, 5)
    commit_range(lake.table, there, lambda: Written(there, []), attempt="x", job="test")
    lake.produce(1)

    with pytest.raises(DataLossError, match=r"partition 0 .* ends at 4, .* offsets up to 5"):
        lake.scan()


def test_columns(lake):
    """A choice of columns, those that say where a row is from, and nulls in one that came later."""
    lake.produce(3)
    lake.put(0, 2)

    assert lake.scan(columns=["tag"]).read_all().schema.equals(pa.schema([SCHEMA.field("tag")]))
    table = lake.scan(columns=["sequence", "n"], metadata=True).read_all()
    direct = read_range(lake.address, topic=lake.topic, columns=["sequence", "n"], metadata=True)
    assert table.sort_by("n").equals(direct.sort_by("n"))

    lake.grow()
    lake.produce(1)
    scores = lake.scan(metadata=True).read_all().sort_by("n")["score"].to_pylist()
    late = [n / 2 for n in range(3 * ROWS, 4 * ROWS)]
    assert scores == [None] * 3 * ROWS + late


def test_options_that_do_not_go_together(lake):
    """Offsets and times are those of the topic alone, and an end by partition that of both."""
    lake.produce(1)
    lake.put(0, 1)

    assert len(lake.scan(partition=None, start_time=None).read_all()) > 0
    with pytest.raises(ConfigError, match="unknown option 'colums'"):
        lake.scan(colums=["n"])
    with pytest.raises(ConfigError, match="partition = 0: not with a table"):
        lake.scan(partition=0)
    with pytest.raises(ConfigError, match="until: goes with a table"):
        scan(lake.address, topic=lake.topic, until={0: 1})

    filtered = lake.scan(metadata=True).read_all().filter(pc.field("partition") == 0)
    assert len(filtered) == len(lake.numbers(until={0: 1})) == ROWS


def test_duckdb_scans_it_again(lake):
    """One scan serves any number of queries, joins with itself and views; all see the same rows."""
    lake.produce(3)
    lake.put(0, 2)
    with closing(duckdb.connect()) as connection, lake.scan() as rows:
        connection.register("clicks", rows)
        connection.execute("create view again as select n from clicks")
        for _ in range(2):
            lake.produce(1)
            assert connection.sql("select count(*), sum(n) from clicks").fetchall() == [(30, 435)]
        joined = "select count(*) from clicks join again using (n)"
        assert connection.sql(joined).fetchall() == [(30,)]
