"""How the client of an object store is made: options, credentials, certificates."""

from __future__ import annotations

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from memq.core.named_values import parse_storage_options
from memq.errors import ConfigError, StorageError
from memq.storage.object_store import ObjectStorage
from memq.storage.open import open_uri
from tests.harness.services.certificates import make_certificate
from tests.harness.services.s3proxy import S3Proxy


def put(storage, key="k"):
    storage.put(key, [b"abc"], timeout_s=30)


class Recorder(BaseHTTPRequestHandler):
    """Takes every PUT, and keeps its headers."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.headers.append(dict(self.headers))
        self.send_response(200)
        self.send_header("ETag", '"x"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def recorder():
    """A server that takes everything."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Recorder) as server:
        server.headers = []
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_options_reach_the_store(recorder):
    """Encryption, storage class, tags and an unsigned payload stand in the headers of a put."""
    options = {
        "endpoint": f"http://127.0.0.1:{recorder.server_port}",
        "server_side_encryption": "aws:kms",
        "sse_kms_key_id": "some-key",
        "storage_class": "INTELLIGENT_TIERING",
        "tag.team": "logs & more",
        "unsigned_payload": "true",
    }
    put(ObjectStorage("s3://bucket", "root", options))
    (headers,) = recorder.headers
    found = {name.lower(): value for name, value in headers.items()}
    assert found["x-amz-server-side-encryption"] == "aws:kms"
    assert found["x-amz-server-side-encryption-aws-kms-key-id"] == "some-key"
    assert found["x-amz-storage-class"] == "INTELLIGENT_TIERING"
    assert found["x-amz-tagging"] == "team=logs+%26+more"
    assert found["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert found["if-none-match"] == "*"


def test_readers_may_have_options_as_well(storage, bucket, monkeypatch, s3_server):
    """What the environment does not say can be given with the URI."""
    put(storage)
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    options = parse_storage_options({"endpoint": s3_server.endpoint})
    found, key = open_uri(storage.uri("k"), options)
    assert bytes(found.get(key)) == b"abc"
    assert open_uri(storage.uri("l"), options)[0] is found


@pytest.fixture(scope="module")
def tls(tmp_path_factory, service_jars):
    """A server with a certificate of a private authority, and the file with that."""
    folder = tmp_path_factory.mktemp("tls")
    certificate = make_certificate(folder, "s3")
    with S3Proxy(
        folder / "s3",
        keystore=certificate.keystore,
        keystore_password=certificate.password,
        jars=service_jars,
    ) as server:
        server.make_bucket("private")
        yield server, certificate.pem


def test_a_certificate_of_a_private_authority(tls, monkeypatch):
    """It is trusted when an option or AWS_CA_BUNDLE names its file, and not otherwise."""
    server, pem = tls
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    put(ObjectStorage("s3://private", "", {"ca_certificate": str(pem)}))
    with pytest.raises(StorageError, match=r"certificate is not trusted \(UnknownIssuer\)"):
        put(ObjectStorage("s3://private"), "l")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(pem))
    put(ObjectStorage("s3://private"), "m")


PEM = "-----BEGIN CERTIFICATE-----\nbm9uZQ==\n-----END CERTIFICATE-----\n"


@pytest.mark.parametrize("text", [None, "no certificate", PEM], ids=["no file", "no PEM", "no DER"])
def test_a_certificate_that_cannot_be_read_is_named(tmp_path, text):
    """A file that is not there, or has no certificate, is an error of the configuration."""
    path = tmp_path / "ca.pem"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(f"ca_certificate = {str(path)!r}")):
        ObjectStorage("s3://bucket", "", {"ca_certificate": str(path)})
