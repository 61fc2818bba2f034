"""`make dist`: builds the wheels and source distributions, and tries them with the newest Airflow.

`tests/system/test_wheel.py` tries them without a package index. Here uv makes an environment from
it, with all extras, in a temporary folder that is removed at the end; a broker that runs from the
wheel is what Airflow asks. Anything that is not as it should be is an error.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from tests.system.distributions.builds import PROJECTS, broker, build, rebuilt, run

HERE = Path(__file__).parent
TOPIC = "tried"
RECORDS = 1_000
INSTALL_TIMEOUT_S = 900  # a cold cache and a slow index
START_S = 180  # Airflow takes a while on a busy machine
SHIPPED = {
    "memq_plan_ranges",
    "memq_process_ranges",
    "memq_hourly",
    "memq_audit",
    "memq_backfill",
    "memq_retention",
}
EXTRAS = ("spark", "amazon", "openlineage", "iceberg")
LOADED = """
from importlib.metadata import entry_points
from airflow_provider_memq.operators import memq
for name in memq.__all__:
    getattr(memq, name)
for each in entry_points(group="airflow.plugins"):
    each.load()
"""
"""Every operator that the extras let one import, and all plugins."""


def main() -> None:
    """Build and try."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the files go")
    parser.add_argument("--only-build", action="store_true", help="try nothing")
    given = parser.parse_args()
    wheels = built(given.folder.resolve())
    if given.only_build:
        return
    with tempfile.TemporaryDirectory(prefix="memq-dist-") as folder:
        newest = [wheels[0], f"{wheels[1]}[{','.join(EXTRAS)}]"]
        programs = environment(Path(folder) / "newest", newest)
        with broker(programs, folder) as address:
            try_airflow(programs, address, Path(folder))


def built(folder):
    """Build all, and each wheel from its source too; gives the wheels."""
    wheels = []
    for project in PROJECTS.values():
        sdist, wheel = build(project, folder, "sdist"), build(project, folder, "wheel")
        with tempfile.TemporaryDirectory() as other:
            again = rebuilt(sdist, other)
            assert again.read_bytes() == wheel.read_bytes(), f"{sdist} makes another wheel"
        print(wheel, sdist, sep="\n")
        wheels.append(wheel)
    return wheels


def environment(folder, wanted):
    """The programs of a new environment with these packages, and nothing else."""
    run(sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, folder)
    run(  # in the checkout, whose pyproject.toml leaves out pyspark-client
        *(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", folder, *wanted),
        timeout=INSTALL_TIMEOUT_S,
    )
    return folder / "bin"


def try_airflow(programs, address, home):
    """Airflow has the provider; a sensor is deferred, an audit is clean, and DAGs are parsed."""
    variables = {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_CONN_MEMQ_DEFAULT": f"memq://{address}",
        "TRIED_TOPIC": TOPIC,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }
    known = {"env": variables, "cwd": home, "timeout": START_S}
    airflow = programs / "airflow"
    run(programs / "memq", "examples", "copy", "dags", "spark_apps", home)
    (home / "dags" / "tried.py").write_bytes((HERE / "dags" / "tried.py").read_bytes())
    lines = home / "lines"
    lines.write_text("".join(f"{number}\n" for number in range(RECORDS)))
    run(programs / "memq", "produce", TOPIC, "-b", address, "--input", lines)

    assert "airflow-provider-memq" in run(airflow, "providers", "list", **known)
    run(programs / "python", "-P", "-c", LOADED, **known)
    run(airflow, "db", "migrate", **known)
    tested = run(airflow, "dags", "test", "tried", **known)
    assert f"audited: clean {RECORDS}" in tested, tested
    assert "deferred" in tested.lower(), tested
    run(airflow, "dags", "reserialize", **known)
    listed = run(airflow, "dags", "list", "--output", "json", **known)
    (found,) = [each for each in listed.splitlines() if each.startswith("[{")]  # not Airflow's log
    assert {each["dag_id"] for each in json.loads(found)} >= SHIPPED, found


if __name__ == "__main__":
    main()
