"""Encryption headers and roles, with moto's server: it stores encryption headers as S3 does, and implements STS."""

from __future__ import annotations

import configparser
import contextlib
import json
import pickle
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import obstore
import pyarrow as pa
import pytest
from botocore.credentials import AssumeRoleCredentialFetcher, ReadOnlyCredentials
from botocore.exceptions import ClientError
from moto.server import ThreadedMotoServer
from obstore.exceptions import BaseError
from secured import Certificates

from waybill.base.errors import ConfigError, StoreUnavailable
from waybill.config.connections import CatalogEndpoint, S3Endpoint, find_connection
from waybill.services.clients import object_store
from waybill.services.clients import s3 as clients
from waybill.services.store import Store
from waybill.tables import iceberg as tables
from waybill.tables.dedup.index.lookup import QuickReads

pytestmark = pytest.mark.integration

BUCKET = "secured"
ROLE = "arn:aws:iam::123456789012:role/archive"
SECRET = "s3cr3t-value"
SAME = b"the same for all"
KMS = {"server_side_encryption": "aws:kms", "sse_kms_key_id": "alias/archive", "sse_bucket_key_enabled": True}
KMS_STORED = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "alias/archive", "BucketKeyEnabled": True}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module")
def admin(url: str) -> Iterator[Any]:
    client = boto3.client(
        "s3", endpoint_url=url, aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-1"
    )
    client.create_bucket(Bucket=BUCKET)
    yield client
    client.close()


@pytest.fixture(autouse=True)
def own_environment(admin: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Hide the keys and profiles of the person who runs the tests."""
    for variable in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    clients._session_as.cache_clear()
    yield
    clients._session_as.cache_clear()


def endpoint(url: str, *, login: str | None = "AKIDBASE", **extra: Any) -> S3Endpoint:
    keys = {"login": login, "password": SECRET} if login else {}
    document = {"conn_type": "aws", **keys, "extra": {"endpoint_url": url, "region_name": "us-east-1", **extra}}
    return S3Endpoint.of(find_connection("vault", {"AIRFLOW_CONN_VAULT": json.dumps(document)}))


class Same(BaseHTTPRequestHandler):
    """An S3 server that answers every GET with the same bytes."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        for name, value in {"ETag": '"same"', "Last-Modified": "Sun, 01 Nov 2026 00:00:00 GMT"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(SAME)))
        self.end_headers()
        self.wfile.write(SAME)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@contextlib.contextmanager
def over_tls(certificate: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Same)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that does not trust the certificate closes the connection
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield f"https://localhost:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


def role(url: str, **arguments: Any) -> dict[str, Any]:
    return {
        "role_arn": ROLE,
        "assume_role_kwargs": {"RoleSessionName": "nightly", "ExternalId": "ours"} | arguments,
        "service_config": {"sts": {"endpoint_url": url}},
    }


class Requests:
    """Records the access key in the signature of each request of a Store's client."""

    def __init__(self, store: Store) -> None:
        self.access_keys: list[str] = []
        store.client.meta.events.register("before-send.s3", self._note)

    def _note(self, request: Any, **_: Any) -> None:
        authorization = request.headers["Authorization"].decode()
        self.access_keys.append(authorization.partition("Credential=")[2].partition("/")[0])


# --- encryption -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extra", "stored"),
    [({"server_side_encryption": "AES256"}, {"ServerSideEncryption": "AES256"}), (KMS, KMS_STORED)],
    ids=["sse-s3", "sse-kms"],
)
def test_objects_are_created_with_the_connections_encryption(
    url: str, admin: Any, extra: dict[str, Any], stored: dict[str, Any]
) -> None:
    prefix = f"sse-{extra['server_side_encryption'].replace(':', '-')}"
    with Store(endpoint(url, **extra), BUCKET, prefix, part_bytes=5 << 20) as store:
        store.create_if_absent(f"{prefix}/small", b"one call")
        for name, size in (("one-part", 100), ("parts", 11 << 20)):
            with store.upload_if_absent(f"{prefix}/{name}") as upload:
                upload.write(b"x" * size)
                upload.complete()
    for name in ("small", "one-part", "parts"):
        check_stored(admin, f"{prefix}/{name}", stored, in_parts=name == "parts")


def check_stored(admin: Any, key: str, stored: dict[str, Any], *, in_parts: bool) -> None:
    """Compare the stored headers. Moto does not keep the bucket key of a multipart upload."""
    found = admin.head_object(Bucket=BUCKET, Key=key)
    wanted = {name: value for name, value in stored.items() if not (in_parts and name == "BucketKeyEnabled")}
    assert {name: found.get(name) for name in wanted} == wanted, key


def test_objects_have_the_buckets_encryption_when_the_connection_asks_for_none(url: str, admin: Any) -> None:
    with Store(endpoint(url), BUCKET) as store:
        store.create_if_absent("plain", b"x")
    assert admin.head_object(Bucket=BUCKET, Key="plain").get("ServerSideEncryption") in (None, "AES256")


def test_store_refuses_a_server_that_ignores_encryption(url: str, admin: Any) -> None:
    """A silent fallback would leave years of data unencrypted."""
    with Store(endpoint(url, **KMS), BUCKET) as store:
        store.client.meta.events.register("before-call.s3", _drop_encryption)
        with pytest.raises(ConfigError, match="ignores server_side_encryption 'aws:kms' of connection 'vault'"):
            store.create_if_absent("passed-over", b"x")
        upload = store.upload_if_absent("passed-over-in-parts")
        with upload, pytest.raises(ConfigError, match="ignores server_side_encryption"):
            upload.write(b"x" * (17 << 20))
    with pytest.raises(ClientError, match="Not Found"):
        admin.head_object(Bucket=BUCKET, Key="passed-over-in-parts")
    assert "Uploads" not in admin.list_multipart_uploads(Bucket=BUCKET, Prefix="passed-over")


def _drop_encryption(params: dict[str, Any], **_: Any) -> None:
    for header in [header for header in params["headers"] if "server-side-encryption" in header.lower()]:
        del params["headers"][header]


def expire_keys(where: S3Endpoint) -> None:
    """Make the temporary keys expire, as after an hour."""
    credentials = clients._session(where).get_credentials()
    credentials._expiry_time = credentials._time_fetcher()
    credentials._refresh_using.__self__._cache.clear()


# --- roles ------------------------------------------------------------------------------------------------------------


def test_store_uses_the_keys_of_the_role(url: str) -> None:
    with Store(endpoint(url, **role(url, DurationSeconds=1800)), BUCKET) as store:
        requests = Requests(store)
        store.create_if_absent("as-a-role", b"x")
        assert store.read("as-a-role") == b"x"
    (used,) = set(requests.access_keys)
    assert used.startswith("ASIA")  # as temporary keys do
    assert used != "AKIDBASE"


def test_index_reads_use_the_keys_of_the_role(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    used: list[str] = []

    def recorded(where: S3Endpoint) -> ReadOnlyCredentials:
        used.append((found := clients.current_keys(where)).access_key or "")
        return found

    monkeypatch.setattr(object_store, "current_keys", recorded)
    where = endpoint(url, **role(url))
    with Store(where, BUCKET) as store:
        store.create_if_absent("read-as-a-role", b"what was written")
        reads = QuickReads(store, where)
        assert bytes(reads.read("read-as-a-role")) == b"what was written"
        assert bytes(reads.read_range("read-as-a-role", 5, 3)) == b"was"
    assert not [record for record in caplog.records if record.name.startswith("waybill")]  # no fallback
    assert all(key.startswith("ASIA") for key in used)
    assert used


def test_index_reads_trust_the_connections_ca(tmp_path: Path) -> None:
    """Read over TLS from a server that answers every GET with the same bytes."""
    authority = Certificates(tmp_path)
    *_, certificate = authority.issue("s3", ("localhost",))
    with over_tls(certificate) as https:
        trusting = endpoint(https, verify=str(authority.ca))
        assert bytes(obstore.get(object_store.object_store(trusting, BUCKET), "any").bytes()) == SAME
        with pytest.raises(BaseError):
            obstore.get(object_store.object_store(endpoint(https), BUCKET), "any")


def test_keys_of_a_role_are_renewed_before_they_expire(url: str) -> None:
    where = endpoint(url, **role(url))
    before = clients.renewed_keys(where)
    assert clients.renewed_keys(where) == before
    expire_keys(where)
    with Store(where, BUCKET) as store:
        requests = Requests(store)
        store.create_if_absent("renewed", b"x")
    after = clients.renewed_keys(where)
    assert before is not None
    assert after is not None
    assert before.access_key != after.access_key
    assert requests.access_keys == [after.access_key]


def test_refused_role_is_one_clear_line(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        answer = {"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
        raise ClientError(answer, "AssumeRole")

    where = endpoint(url, **role(url))
    monkeypatch.setattr(AssumeRoleCredentialFetcher, "_get_credentials", refuse)
    with (
        Store(where, BUCKET) as store,
        pytest.raises(ConfigError, match=f"role {ROLE} was refused .* of connection 'vault'"),
    ):
        store.read("x")
    with pytest.raises(ConfigError, match=f"role {ROLE} was refused"):
        clients.renewed_keys(where)


def test_unreachable_sts_raises_store_unavailable(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_STS_OPTIONS", {"connect_timeout": 1, "retries": {"total_max_attempts": 1}})
    with Store(endpoint(url, **role("http://127.0.0.1:1")), BUCKET) as store, pytest.raises(StoreUnavailable):
        store.read("x")


def test_role_is_assumed_with_the_keys_of_a_profile(url: str, tmp_path: Path) -> None:
    config = configparser.ConfigParser()
    config["archive"] = {"aws_access_key_id": "AKIDPROFILE", "aws_secret_access_key": SECRET}
    with (tmp_path / "credentials").open("w") as file:
        config.write(file)
    with Store(endpoint(url, login=None, profile_name="archive"), BUCKET) as store:
        requests = Requests(store)
        store.create_if_absent("by-profile", b"x")
    assert requests.access_keys == ["AKIDPROFILE"]
    with Store(endpoint(url, login=None, profile_name="archive", **role(url)), BUCKET) as store:
        requests = Requests(store)
        store.create_if_absent("by-profile-and-role", b"x")
    assert requests.access_keys[0].startswith("ASIA")


def test_missing_profile_is_named(url: str) -> None:
    with pytest.raises(ConfigError, match=r"connection 'vault' .*\(nobody\) could not be found"):
        Store(endpoint(url, login=None, profile_name="nobody"), BUCKET)


# --- files of tables --------------------------------------------------------------------------------------------------


def file_io(where: S3Endpoint) -> Any:
    return tables.file_io(CatalogEndpoint(properties={}), where, f"s3://{BUCKET}/warehouse")


def test_table_files_have_the_connections_encryption(url: str, admin: Any) -> None:
    io = pickle.loads(pickle.dumps(file_io(endpoint(url, **KMS))))
    for name, size in (("small.parquet", 10), ("parts.parquet", 20 << 20)):
        location = f"s3://{BUCKET}/warehouse/{name}"
        with io.new_output(location).create() as file:
            file.write(b"x" * size)
        check_stored(admin, f"warehouse/{name}", KMS_STORED, in_parts=name == "parts.parquet")
        with io.new_input(location).open() as file:
            assert file.read() == b"x" * size
        with pytest.raises(FileExistsError):
            io.new_output(location).create()
        io.delete(location)
        assert not io.new_input(location).exists()


def test_table_file_is_not_created_when_writing_fails_half_way(url: str) -> None:
    output = file_io(endpoint(url, **KMS)).new_output(f"s3://{BUCKET}/warehouse/half")
    file = output.create()
    file.write(b"half")
    file.__exit__(RuntimeError, RuntimeError(), None)
    assert not output.exists()


def test_table_files_are_read_and_written_with_the_keys_of_the_role(url: str) -> None:
    where = endpoint(url, **role(url))
    io = file_io(where)
    assert SECRET not in "".join(value for key, value in io.properties.items() if key.startswith("s3."))
    location = f"s3://{BUCKET}/warehouse/by-role"
    with io.new_output(location).create() as file:
        file.write(b"x")
    used = io.fs_by_scheme("s3", BUCKET).__reduce__()[1][0]["access_key"]
    keys = clients.renewed_keys(where)
    assert keys is not None
    assert used == keys.access_key
    expire_keys(where)
    with io.new_input(location).open() as file:
        assert file.read() == b"x"
    assert io.fs_by_scheme("s3", BUCKET).__reduce__()[1][0]["access_key"] != used


def test_table_is_written_and_read_with_a_role_and_a_kms_key(url: str, admin: Any, tmp_path: Path) -> None:
    """Covers PyIceberg's metadata, manifests and data files."""
    catalog = tables.open_catalog(
        CatalogEndpoint(
            properties={"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"s3://{BUCKET}/tables"}
        ),
        endpoint(url, **KMS, **role(url)),
    )
    with contextlib.closing(catalog):
        catalog.create_namespace("n")
        rows = pa.table({"number": [1, 2, 3]})
        table = catalog.create_table("n.t", rows.schema)
        table.append(rows)
        assert catalog.load_table("n.t").scan().to_arrow() == rows
    keys = [entry["Key"] for entry in admin.list_objects_v2(Bucket=BUCKET, Prefix="tables/")["Contents"]]
    assert {Path(key).suffix for key in keys} == {".json", ".avro", ".parquet"}
    for key in keys:
        check_stored(admin, key, KMS_STORED, in_parts=False)
