"""`make dist`: builds the wheels and source distributions, and tries each in an empty environment.

Each environment is made by uv from the package index, in a temporary folder that is removed at the
end: `memq` alone; and `memq` and the provider with the newest Airflow and all extras. A broker that
runs from the first one is what the other asks. Anything that is not as it should be is an error.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from tests.system.distributions.builds import PROJECTS, ROOT, build, in_words, metadata_of, rebuilt

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


def main() -> None:
    """Build, show, try."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the files go")
    parser.add_argument("--only-build", action="store_true", help="try nothing")
    given = parser.parse_args()
    wheels = built(given.folder.resolve())
    if given.only_build:
        return
    with tempfile.TemporaryDirectory(prefix="memq-dist-") as name:
        folder = Path(name)
        alone = environment(folder / "alone", wheels[:1])
        with broker(alone) as address:
            try_alone(alone, address)
            newest = [wheels[0], f"{wheels[1]}[{','.join(EXTRAS)}]"]
            try_airflow(environment(folder / "newest", newest), address)


def built(folder):
    """The wheels of both; prints what every file has, and builds each wheel from its source too."""
    wheels = []
    for name, project in PROJECTS.items():
        sdist, wheel = build(project, folder, "sdist"), build(project, folder, "wheel")
        with tempfile.TemporaryDirectory() as other:
            again = rebuilt(sdist, other)
            assert again.read_bytes() == wheel.read_bytes(), f"{sdist} makes another wheel"
        for path in (wheel, sdist):
            print(in_words(path))
        metadata = metadata_of(wheel)
        needs = [each for each in metadata.get_all("Requires-Dist") if ";" not in each]
        extras = ", ".join(metadata.get_all("Provides-Extra"))
        print(f"  {name} {metadata['Version']} needs {', '.join(needs)}; extras: {extras}")
        wheels.append(wheel)
    return wheels


def environment(folder, wanted):
    """The programs of a new environment with these packages, and nothing else."""
    begun = time.monotonic()
    run(sys.executable, "-m", "uv", "venv", "--quiet", "--python", sys.executable, folder)
    run(
        *(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", folder, *wanted),
        cwd=ROOT,  # whose pyproject.toml leaves out pyspark-client
        timeout=INSTALL_TIMEOUT_S,
    )
    count = len(list(folder.glob("lib/python*/site-packages/*.dist-info")))
    print(f"{folder.name}: {count} packages in {time.monotonic() - begun:.0f} s", flush=True)
    return folder / "bin"


def run(*command, env=None, timeout=TIMEOUT_S, cwd=None, ends=0):
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
    assert done.returncode == ends, f"{command}: {done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout if ends == 0 else done.stderr


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


def try_alone(programs, address):
    """The command works, records go in, and neither Airflow nor its provider is there."""
    code = """
import sys, memq
from importlib.metadata import entry_points
from importlib.util import find_spec
assert "site-packages" in memq.__file__
assert find_spec("airflow_provider_memq") is None and find_spec("airflow") is None
groups = ("apache_airflow_provider", "airflow.plugins")
print(sum(len(entry_points(group=each)) for each in groups))
"""
    found = run(programs / "python", "-c", code).strip()
    assert found == "0", found
    assert "produce" in run(programs / "memq", "--help")
    with tempfile.TemporaryDirectory() as folder:
        no_dags = run(programs / "memq", "examples", "copy", "dags", folder, ends=2)
        lines = Path(folder) / "lines"
        lines.write_text("".join(f"{number}\n" for number in range(RECORDS)))
        run(programs / "memq", "produce", TOPIC, "-b", address, "--input", lines)
    assert "pip install airflow-provider-memq" in no_dags, no_dags
    version = run(programs / "memq", "--version").strip()
    print(f"  {version}: imported, `memq --help` and `memq dev` run, {RECORDS} records are in")
    print(f"  entry points for Airflow: {found}; {no_dags.strip().splitlines()[-1]}")


def try_airflow(programs, address):
    """Airflow shows the provider; hook, sensor, triggers and audit ask the broker, and work."""
    with tempfile.TemporaryDirectory(prefix="memq-dist-airflow-") as home:
        dags = Path(home) / "dags"
        known = {
            "AIRFLOW_HOME": home,
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW_CONN_MEMQ_DEFAULT": f"memq://{address}",
            "TRIED_TOPIC": TOPIC,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        }
        airflow = programs / "airflow"
        run(programs / "memq", "examples", "copy", "dags", "spark_apps", home)
        (dags / "tried.py").write_bytes((HERE / "dags" / "tried.py").read_bytes())
        listed = json.loads(run(airflow, "providers", "list", "--output", "json", env=known))
        (provider,) = [each for each in listed if each["package_name"] == "airflow-provider-memq"]
        lines = run(programs / "python", HERE / "probe.py", TOPIC, env=known).splitlines()
        found = json.loads(lines[-1])  # after what Airflow has logged
        check_parts(found)
        run(airflow, "db", "migrate", env=known)
        tested = run(airflow, "dags", "test", "tried", env=known)
        (audited,) = [line for line in tested.splitlines() if "audited: " in line]
        assert f"audited: clean {RECORDS}" in audited, audited
        assert "deferred" in tested.lower()
        print(f"  airflow providers list: {json.dumps(provider)}")
        for name, value in found.items():
            print(f"  {name}: {value}")
        verdict = audited[audited.index("audited") :]
        print(f"  airflow dags test: a sensor was deferred; then {verdict}")
        shipped = check_shipped(airflow, known)
        print(f"  DAGs of `memq examples copy dags`: {', '.join(shipped)}")


def check_parts(found):
    """What the provider promises works."""
    assert found["hook"]["0"] > 0, found
    assert found["sensor"]["records"] == RECORDS, found
    assert found["trigger"]["0"] > 0, found
    assert found["watch"] > 0, found
    assert isinstance(found["plugins"], list), found["plugins"]
    assert found["queue"] == "MemqWatchTrigger", found
    assert found["planner"] == "MemqPlanRangesOperator", found
    assert "memq_plan_ranges" in found["pipeline"], found
    assert found["start_from_trigger"] == "execute_complete", found
    assert found["spark"] == "MemqSparkSubmitOperator", found
    assert all(name == made for name, made in found["operators"].items()), found["operators"]


def check_shipped(airflow, known):
    """The DAGs that users copy are all there, so they were parsed; gives their ids."""
    run(airflow, "dags", "reserialize", env=known)
    listed = run(airflow, "dags", "list", "--output", "json", env=known)
    (line,) = [each for each in listed.splitlines() if each.startswith("[{")]  # not Airflow's log
    found = sorted(each["dag_id"] for each in json.loads(line))
    assert set(found) >= SHIPPED, found
    return found


if __name__ == "__main__":
    main()
