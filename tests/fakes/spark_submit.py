"""A stand-in for `spark-submit`, which Airflow's own hook starts."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

from airflow.providers.apache.spark.hooks import spark_submit

# Airflow's hook looks for the driver in what a cluster says.
_SCRIPT = """#!{python}
import json, os, sys
with open({log!r}, "a") as log:
    log.write(json.dumps([sys.argv[1:], dict(os.environ)]) + "\\n")
print("submitted driver-1")
sys.exit(int(os.environ.get("EXIT_CODE", "0")))
"""


class SparkSubmit:
    """A program on the PATH that notes how it was started, and exits with `EXIT_CODE`.

    Args:
        folder: of the program and its notes.
        monkeypatch: of the test.
    """

    def __init__(self, folder, monkeypatch):
        self._log = folder / "submissions"
        self._log.touch()
        script = folder / "bin" / "spark-submit"
        script.parent.mkdir()
        script.write_text(_SCRIPT.format(python=sys.executable, log=str(self._log)))
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")

    @property
    def calls(self):
        """Arguments and environment of each time that it was started."""
        return [json.loads(line) for line in self._log.read_text().splitlines()]


@contextmanager
def closed_pipes(monkeypatch):
    """Close the pipes of programs, which Airflow's hook leaves to the garbage collector."""
    started = []

    class Remembered(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            started.append(self)

    ours = {**vars(subprocess), "Popen": Remembered}
    monkeypatch.setattr(spark_submit, "subprocess", SimpleNamespace(**ours))
    yield
    for each in started:
        if each.stdout:
            each.stdout.close()
