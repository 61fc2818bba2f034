"""Settings of the tests of the Airflow provider."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

# Airflow makes this folder when it is first imported: it must not be the one of the user.
if "AIRFLOW_HOME" not in os.environ:
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="airflow-")
    atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)
