"""The examples in the page for Spark users run as they are printed, one after the other."""

import re
from pathlib import Path

from memq import AdminClient
from tests.system.spark.reading import produce

PAGE = Path(__file__).parents[3] / "docs" / "spark.md"
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_examples_run(spark, broker, tmp_path, capsys):
    """Every example of `docs/spark.md` runs, in their order, against a topic with some data."""
    with AdminClient(broker.address) as admin:
        admin.create_topic("clicks", read_partitions=2, batch_age="1ms")
        admin.create_topic("views")
    for number in range(4):
        produce(broker.address, "clicks", [b"click-%d" % number])
    names = {}

    for block in FENCE.findall(PAGE.read_text()):
        code = block.replace("127.0.0.1:6367", broker.address).replace("/data/", f"{tmp_path}/")
        exec(compile(code, str(PAGE), "exec"), names)  # noqa: S102 - our own page

    printed = capsys.readouterr().out
    assert printed.startswith("4\n")
    assert "|    ok|" in printed
    assert names["total"] == 4 * len(b"click-0")
    assert printed.rstrip().splitlines().count("4") == 2
