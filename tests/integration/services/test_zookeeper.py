"""The ZooKeeper of the tests serves, and keeps what it was told."""

from __future__ import annotations

import subprocess

from tests.harness.services.zookeeper import ZooKeeper


def shell(server, *command):
    """Run a command of ZooKeeper's own shell, and return what it prints."""
    main = ["java", "-cp", server.class_path, "org.apache.zookeeper.ZooKeeperMain"]
    done = subprocess.run(
        [*main, "-server", server.address, *command],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_it_serves(zookeeper_server):
    """A server that was started says that it is well, and serves by itself."""
    assert zookeeper_server.four_letter_word("ruok") == "imok"
    assert "Mode: standalone" in zookeeper_server.four_letter_word("srvr")


def test_data_outlives_a_kill(tmp_path, service_jars):
    """After kill -9 and a start it has the same nodes, at the same address."""
    with ZooKeeper(tmp_path, jars=service_jars) as server:
        shell(server, "create", "/node", "kept")
        server.kill()
        server.start()
        assert "kept" in shell(server, "get", "/node").splitlines()
