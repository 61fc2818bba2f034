"""An archive of Spark's classes, with which Java starts Spark in two thirds of the time.

Tests start Spark some fifty times, and Java takes longer to load its classes than most of them run.
Java can keep the classes that a program has loaded (class data sharing); `make test` makes such an
archive once, from a small program, in the folder of the services. It is for this Java and these
jars alone. Without it Spark starts as it always does.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

from tests.harness.airflow.standalone import end_session

FOLDER = Path(__file__).parents[2] / ".services"
VARIABLE = "SPARK_SUBMIT_OPTS"  # what Spark's scripts give to Java
# Its programs are short: what compiles longer is not ready before they end.
# An archive that does not fit says so on standard output, which is the program's.
SHORT_RUNS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xlog:disable"
TIMEOUT_S = 600  # with its neighbours it takes ten seconds, on a busy machine minutes

# It loads what most tests need: Parquet, and rows that go to Python and back.
PROGRAM = """
import sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
for name in ("host", "bindAddress"):
    builder = builder.config("spark.driver." + name, "127.0.0.1")
spark = builder.getOrCreate()
rows = spark.range(1000).mapInPandas(lambda frames: frames, "id long")
rows.write.parquet(sys.argv[1])
assert spark.read.parquet(sys.argv[1]).count() == 1000
spark.stop()
"""


def java_options() -> str:
    """What Java is told when a test starts Spark; without an archive it takes no notice of it."""
    return f"{SHORT_RUNS} -XX:SharedArchiveFile={_archive()}"


def make() -> None:
    """Make the archive, unless it is there.

    Raises:
        RuntimeError: Spark does not run here; with the end of what it said.
        subprocess.TimeoutExpired: it takes too long.
    """
    archive = _archive()
    if archive.exists():
        return
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="memq-spark-") as folder:
        new = Path(folder) / "classes.jsa"
        program = Path(folder) / "program.py"
        program.write_text(PROGRAM)
        options = f"{SHORT_RUNS} -XX:ArchiveClassesAtExit={new}"
        spark = subprocess.Popen(
            [sys.executable, str(program), str(Path(folder) / "rows")],
            env=os.environ | {"PYSPARK_PYTHON": sys.executable, VARIABLE: options},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            said, _ = spark.communicate(timeout=TIMEOUT_S)
        finally:  # Java outlives a program that was interrupted
            end_session(spark)
        if spark.returncode != 0:
            raise RuntimeError(f"no archive of Spark's classes: {said[-2000:].decode()}")
        part = archive.with_suffix(f".{os.getpid()}")
        shutil.copyfile(new, part)  # the folder may be on another disk
    for old in FOLDER.glob("spark-*.jsa"):
        old.unlink(missing_ok=True)
    part.replace(archive)


def _archive() -> Path:
    """Its place, which is another one for another Java or other jars."""
    pyspark = importlib.util.find_spec("pyspark")
    assert pyspark is not None
    assert pyspark.origin is not None
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")
    files = [java.resolve(), *sorted(Path(pyspark.origin).with_name("jars").glob("*.jar"))]
    state = repr([(str(each), each.stat().st_mtime_ns) for each in files if each.exists()])
    return FOLDER / f"spark-{zlib.crc32(state.encode()):08x}.jsa"
