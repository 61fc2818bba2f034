"""A broker in a process of its own whose object store fails."""

import signal
import subprocess
import sys
import time

import pytest

from memq import AdminClient, Producer
from memq.storage.object_store import STALL_S
from memq.testing.broker import BrokerProcess
from tests.harness.services.http_faults import Hang, Rule


@pytest.fixture
def options(bucket, faults, tmp_path):
    """Of a broker whose store is behind the proxy."""
    return {
        "data_dir": str(tmp_path),
        "storage": f"s3://{bucket}/root",
        "storage_options": f"endpoint=http://{faults.address}",
    }


@pytest.mark.parametrize("asked", ["list-type=2", "/topics/"])
def test_a_start_that_waits_for_a_silent_store_ends_at_once(options, faults, asked):
    """SIGTERM ends a start, whether it asks for the bucket or for the newest objects."""
    with BrokerProcess(**options) as broker, AdminClient(broker.address) as admin:
        admin.create_topic("t")
        with Producer(broker.address, topic="t") as producer:
            producer.write(b"value").result(30)
        assert broker.terminate() == 0
    hang = faults.add(Rule(Hang(), method="GET", key=asked, times=None))
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "memq", "broker", "--port=0", "--admin-port=0", *flags]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            faults.wait_struck(hang)
            began_s = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
            assert time.monotonic() - began_s < STALL_S / 2
        finally:
            process.kill()
