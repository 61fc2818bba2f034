"""The wheels: what `pip install` gives, in an environment that knows nothing of the checkout.

`make dist` tries them with the newest Airflow; this needs no package index.
"""

import re
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from memq.cli.examples import DAGS, FOLDERS, files_of
from tests.system.distributions.builds import (
    PROJECTS,
    ROOT,
    broker,
    build,
    metadata_of,
    names_in,
    rebuilt,
    run,
)

PROVIDER = "airflow-provider-memq"
WITH_MEMQ = [name for name in FOLDERS if name != DAGS]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Both, by the name of the distribution, as `make dist` builds them."""
    folder = tmp_path_factory.mktemp("dist")
    return {name: build(project, folder, "wheel") for name, project in PROJECTS.items()}


def environment(folder, *wheels):
    """Programs of a new environment with some wheels in it.

    What they require is taken from the pinned packages here, so that nothing is downloaded; their
    folder comes after the environment's own, and files with paths to a checkout do not count in it.
    """
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    install = (sys.executable, "-m", "uv", "pip", "install", "--offline", "--no-deps")
    run(*install, "--python", python, *wheels)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "pinned.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin"


@pytest.fixture(scope="module")
def alone(wheels, tmp_path_factory):
    """Programs of an environment with memq, and without the provider."""
    return environment(tmp_path_factory.mktemp("alone"), wheels["memq"])


@pytest.fixture(scope="module")
def both(wheels, tmp_path_factory):
    """Programs of an environment with both."""
    return environment(tmp_path_factory.mktemp("both"), *wheels.values())


def test_content_of_memq(wheels):
    """The wheel has the packages and what is to be copied, and nothing else of the checkout."""
    names = names_in(wheels["memq"])

    assert {f"memq/_examples/{name}" for name in files_of(WITH_MEMQ)} <= set(names)
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"memq", "pyspark_memq"}
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "memq").rglob("*.py")}
    assert {name for name in names if re.fullmatch(r"memq/(?!_examples).*\.py", name)} == sources
    assert "memq/py.typed" in names


def test_content_of_the_provider(wheels):
    """The wheel of the provider has its one package, with its templates and the DAGs in it."""
    names = {name for name in names_in(wheels[PROVIDER]) if ".dist-info/" not in name}

    package = ROOT / "airflow_provider_memq"
    sources = {
        str(path.relative_to(ROOT))
        for kind in ("*.py", "*.html", "*.css", "*.json")
        for path in package.rglob(kind)
    }
    assert names == sources | {f"airflow_provider_memq/{name}" for name in files_of([DAGS])}


@pytest.mark.parametrize("name", PROJECTS)
def test_the_source_builds_again(name, wheels, tmp_path):
    """A source distribution makes the very wheel that the checkout makes."""
    sdist = build(PROJECTS[name], tmp_path, "sdist")

    assert rebuilt(sdist, tmp_path / "elsewhere").read_bytes() == wheels[name].read_bytes()


def test_metadata(wheels):
    """Both wheels ask for what their pyproject.toml says, offer its extras, and are of one version:
    the provider asks for memq of that version and no other.
    """
    found = {name: metadata_of(wheel) for name, wheel in wheels.items()}
    for name, metadata in found.items():
        project = tomllib.loads((PROJECTS[name] / "pyproject.toml").read_text())["project"]
        assert (metadata["Name"], metadata["Version"]) == (name, found["memq"]["Version"])
        assert metadata["Version"] == project["version"]
        assert metadata.get_all("Provides-Extra") == sorted(project["optional-dependencies"])
        plain = [each for each in metadata.get_all("Requires-Dist") if "extra ==" not in each]
        assert len(plain) == len(project["dependencies"])
    asked = [each for each in found[PROVIDER].get_all("Requires-Dist") if each.startswith("memq")]
    assert len(asked) == 3  # itself, and with two of its extras
    for each in asked:
        assert each.split(";")[0].strip().endswith(f"=={found['memq']['Version']}")
    assert (PROJECTS[PROVIDER] / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_installed(alone, tmp_path):
    """The command runs from the wheel: version, a broker, records in and out, examples to copy."""
    memq = alone / "memq"
    where = run(alone / "python", "-c", "import memq; print(memq.__file__)", cwd=tmp_path)
    assert Path(where).is_relative_to(alone.parent)
    assert run(memq, "--version", cwd=tmp_path).startswith("memq ")

    with broker(alone, tmp_path) as address:
        known = {"cwd": tmp_path, "env": {"MEMQ_BOOTSTRAP": address}}
        run(memq, "produce", "hello", input="one\ntwo\n", **known)
        read = run(memq, "consume", "hello", "--from-beginning", "--exit-at-end", **known)
    assert read == "one\ntwo\n"

    run(memq, "examples", "copy", *WITH_MEMQ, ".", cwd=tmp_path)
    for name in files_of(WITH_MEMQ):
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes()


ENTRIES = """
import sys
from importlib.metadata import distribution
from importlib.util import find_spec
print(*{entry.group for entry in distribution(sys.argv[1]).entry_points})
print(find_spec("pyspark_memq").origin)
"""


def test_what_comes_with_the_provider(alone, both, tmp_path):
    """Without it Airflow finds nothing and the command says where the DAGs come from; with it,
    Airflow finds provider and plugin, and the DAGs are copied. Spark finds the data source.
    """
    groups, path = run(alone / "python", "-c", ENTRIES, "memq", cwd=tmp_path).splitlines()
    assert groups == "console_scripts"
    assert Path(path).is_relative_to(alone.parent)
    refused = run(alone / "memq", "examples", "copy", "dags", ".", cwd=tmp_path, ends=2)
    assert "pip install airflow-provider-memq" in refused
    assert "dags/" not in run(alone / "memq", "examples", "list", cwd=tmp_path)

    groups, _ = run(both / "python", "-c", ENTRIES, PROVIDER, cwd=tmp_path).splitlines()
    assert {"apache_airflow_provider", "airflow.plugins"} <= set(groups.split())
    run(both / "memq", "examples", "copy", "dags", ".", cwd=tmp_path)
    for name in files_of([DAGS]):
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes()
