"""`make dist`: builds the wheels and source distributions, and tries them with the newest Airflow.

`tests/system/test_wheel.py` tries them without a package index. Here uv makes an environment from
it, with all extras, in a temporary folder that is removed at the end; a broker that runs from the
wheel is what Airflow asks. Anything that is not as it should be is an error.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from tests.system.distributions.builds import PROJECTS, ROOT, build, rebuilt

HERE = Path(__file__).parent
TOPIC = "tried"
RECORDS = 1_000
INSTALL_TIMEOUT_S = 900  # a cold cache and a slow index
TIMEOUT_S = 180
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
        with broker(programs) as address:
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
    run(
        *(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", folder, *wanted),
        cwd=ROOT,  # whose pyproject.toml leaves out pyspark-client
        timeout=INSTALL_TIMEOUT_S,
    )
    return folder / "bin"


def run(*command, env=None, timeout=TIMEOUT_S, cwd=None):
    """What a program prints; it must succeed, and does not know the checkout."""
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(each) for each in command],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=cwd or tempfile.gettempdir(),
        env=known | (env or {}),
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@contextmanager
def broker(programs):
    """Address of a `memq dev`."""
    with (
        tempfile.TemporaryDirectory(prefix="memq-dist-data-") as data,
        subprocess.Popen(
            [programs / "memq", "dev", "--port", "0", "--admin-port", "0", "-o", "json"],
            cwd=data,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process,
    ):
        try:
            yield json.loads(process.stdout.readline())["address"]
        finally:
            process.terminate()


def try_airflow(programs, address, home):
    """Airflow has the provider; a sensor is deferred, an audit is clean, and DAGs are parsed."""
    known = {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_CONN_MEMQ_DEFAULT": f"memq://{address}",
        "TRIED_TOPIC": TOPIC,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }
    airflow = programs / "airflow"
    run(programs / "memq", "examples", "copy", "dags", "spark_apps", home)
    (home / "dags" / "tried.py").write_bytes((HERE / "dags" / "tried.py").read_bytes())
    lines = home / "lines"
    lines.write_text("".join(f"{number}\n" for number in range(RECORDS)))
    run(programs / "memq", "produce", TOPIC, "-b", address, "--input", lines)

    assert "airflow-provider-memq" in run(airflow, "providers", "list", env=known)
    run(programs / "python", "-P", "-c", LOADED, env=known)
    run(airflow, "db", "migrate", env=known)
    tested = run(airflow, "dags", "test", "tried", env=known)
    assert f"audited: clean {RECORDS}" in tested, tested
    assert "deferred" in tested.lower(), tested
    run(airflow, "dags", "reserialize", env=known)
    listed = run(airflow, "dags", "list", "--output", "json", env=known)
    (found,) = [each for each in listed.splitlines() if each.startswith("[{")]  # not Airflow's log
    assert {each["dag_id"] for each in json.loads(found)} >= SHIPPED, found


if __name__ == "__main__":
    main()
