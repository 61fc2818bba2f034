"""How a ZooKeeper is named, and what is said when that cannot be right."""

import ssl
import sys

import pytest

from memq.errors import ConfigError
from memq.zookeeper import open_zookeeper
from memq.zookeeper.options import ZooKeeperOptions


@pytest.mark.parametrize(
    ("servers", "addresses", "root"),
    [
        ("zk1", [("zk1", 2181)], ""),
        ("zk1:2181,zk2:2182/memq", [("zk1", 2181), ("zk2", 2182)], "/memq"),
        ("10.0.0.1:99, zk2/a/b/", [("10.0.0.1", 99), ("zk2", 2181)], "/a/b"),
        ("[::1]:2181,[fe80::1]/memq", [("::1", 2181), ("fe80::1", 2181)], "/memq"),
        ("zk1/", [("zk1", 2181)], ""),
    ],
)
def test_servers_and_root(servers, addresses, root):
    """Addresses by commas, each with a port or the usual one, and a root after them."""
    options = ZooKeeperOptions(servers=servers)
    assert options.addresses() == addresses
    assert options.root() == root


@pytest.mark.parametrize(
    "servers", ["", ",", "zk1,", "zk1:port", "zk1:0", "zk1:70000", "http://zk1", "::1"]
)
def test_wrong_servers_are_refused(servers):
    """The error names them, and how they are written is understood."""
    with pytest.raises(ConfigError, match=r"servers = .* write them like") as caught:
        ZooKeeperOptions(servers=servers)
    ZooKeeperOptions(servers=str(caught.value).rpartition(" ")[2])


@pytest.mark.parametrize("servers", ["zk1//a", "zk1/a/../b", "zk1/a\n"])
def test_a_wrong_root_is_refused(servers):
    """It is a path of nodes like any other."""
    with pytest.raises(ConfigError, match="node path"):
        ZooKeeperOptions(servers=servers)


@pytest.mark.parametrize(
    "wrong",
    [
        {"session_timeout_ms": 499},
        {"request_timeout_ms": 0},
        {"user": "memq"},
        {"password": "secret"},
        {"user": "a:b", "password": "secret"},
        {"client_key": "key.pem"},
        {"ca_certificate": "/nowhere/ca.pem"},
        {"client_certificate": "/nowhere/cert.pem"},
    ],
)
def test_wrong_options_are_refused(wrong):
    """The error names the option; no password is shown."""
    with pytest.raises(ConfigError, match=next(iter(wrong)).removesuffix("_ms")) as caught:
        ZooKeeperOptions(servers="zk1", **wrong).tls_context()
    assert "secret" not in str(caught.value)


def test_tls_compares_certificates_and_names():
    """An encrypted connection is to whom it should be; without a word of TLS it is plain."""
    assert ZooKeeperOptions(servers="zk1").tls_context() is None
    context = ZooKeeperOptions(servers="zk1", tls=True).tls_context()
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


async def test_without_kazoo_the_extra_is_named(monkeypatch):
    """Whoever has not installed it learns how."""
    monkeypatch.setitem(sys.modules, "memq.zookeeper.kazoo_link", None)
    with pytest.raises(ConfigError, match=r"memq\[zookeeper\]"):
        await open_zookeeper(ZooKeeperOptions(servers="zk1"))
