"""Settings of the tests of the Airflow provider."""

import atexit
import os
import shutil
import tempfile
from functools import cache

import pytest
from botocore.loaders import JSONFileLoader

# Airflow makes this folder when it is first imported: it must not be the one of the user.
if "AIRFLOW_HOME" not in os.environ:
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="airflow-")
    atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)

_kept_model = cache(JSONFileLoader().load_file)  # each client of boto3 reads megabytes anew


@pytest.fixture
def aws(monkeypatch):
    """AWS in this process, as moto plays it; what the machine knows of clouds is not for tests."""
    from moto import mock_aws

    monkeypatch.setattr(JSONFileLoader, "load_file", lambda _, path: _kept_model(path))
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    settings = {
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
        "NO_PROXY": "127.0.0.1",
        "MOTO_S3_DEFAULT_MAX_KEYS": "10",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with mock_aws(config={"core": {"mock_credentials": False}}):
        yield
