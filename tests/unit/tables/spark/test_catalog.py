"""Spark's settings from the connections of the catalog and of S3: each kind, each option, each refusal."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from devstack.jars import ICEBERG
from waybill.base.errors import ConfigError
from waybill.config.connections import CatalogEndpoint, S3Endpoint, find_connection
from waybill.tables.spark.catalog import JARS, SparkCatalog, spark_catalog
from waybill.tables.spark.session import REDACTED

SECRET = "s3cr3t-value"
FILE_IO = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", "client.region": "eu-west-1", "cache-enabled": "false"}
WAREHOUSE = "s3://lake/tables"


def catalog(host: str | None = None, **extra: Any) -> CatalogEndpoint:
    document = {"conn_type": "iceberg", "host": host, "extra": {"warehouse": WAREHOUSE, **extra}}
    return CatalogEndpoint.of(find_connection("lake", {"AIRFLOW_CONN_LAKE": json.dumps(document)}))


def s3(login: str | None = None, **extra: Any) -> S3Endpoint:
    keys = {"login": login, "password": SECRET} if login else {}
    document = {"conn_type": "aws", **keys, "extra": {"region_name": "eu-west-1", **extra}}
    return S3Endpoint.of(find_connection("aws", {"AIRFLOW_CONN_AWS": json.dumps(document)}))


def properties(endpoint: CatalogEndpoint, store: S3Endpoint | None = None) -> dict[str, str]:
    return dict(spark_catalog(endpoint, store or s3()).properties)


def test_sqlite_catalog() -> None:
    assert properties(catalog("sqlite:////var/lib/catalog.db", type="sql")) == FILE_IO | {
        "type": "jdbc",
        "uri": "jdbc:sqlite:/var/lib/catalog.db",
        "jdbc.busy_timeout": "60000",
        "warehouse": WAREHOUSE,
    }


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("postgresql+psycopg://db.example/iceberg", {"uri": "jdbc:postgresql://db.example:5432/iceberg"}),
        (
            f"postgresql+psycopg2://way%40bill:{SECRET}@[::1]:6432/iceberg",
            {
                "uri": "jdbc:postgresql://[::1]:6432/iceberg",
                "jdbc.user": "way@bill",
                "jdbc.password": SECRET,
            },
        ),
        (
            "postgresql://w@db/i?sslmode=verify-full&sslrootcert=/ca.pem&connect_timeout=3&application_name=waybill",
            {
                "uri": "jdbc:postgresql://db:5432/i",
                "jdbc.user": "w",
                "jdbc.sslmode": "verify-full",
                "jdbc.sslrootcert": "/ca.pem",
                "jdbc.connectTimeout": "3",
                "jdbc.ApplicationName": "waybill",
            },
        ),
    ],
)
def test_postgres_catalog(uri: str, expected: dict[str, str]) -> None:
    found = properties(catalog(uri, type="sql", pool_pre_ping="true"))
    assert found == FILE_IO | {"type": "jdbc", "warehouse": WAREHOUSE} | expected


def test_rest_catalog() -> None:
    given = {
        "credential": f"id:{SECRET}",
        "oauth2-server-uri": "https://auth.example/token",
        "scope": "PRINCIPAL_ROLE:ALL",
        "header.X-Tenant": "eu",
        "rest.sigv4-enabled": "true",
    }
    found = properties(catalog("https://catalog.example/api", type="rest", **given))
    assert found == FILE_IO | {
        "type": "rest",
        "uri": "https://catalog.example/api",
        "warehouse": WAREHOUSE,
        "header.X-Iceberg-Access-Delegation": "vended-credentials",
        **given,
    }


def test_rest_catalog_accepts_another_access_delegation() -> None:
    header = {"header.X-Iceberg-Access-Delegation": "remote-signing"}
    assert properties(catalog("https://c.example", type="rest", **header)).items() >= header.items()


def test_glue_keys_become_system_properties_and_not_file_properties() -> None:
    given = {"glue.id": "123", "glue.region": "us-east-2", "glue.endpoint": "http://localhost:5000"}
    found = spark_catalog(
        catalog(type="glue", **given, **{"glue.access-key-id": "AK", "client.secret-access-key": SECRET}), s3("FILES")
    )
    assert found.properties["type"] == "glue"
    assert found.properties["client.region"] == "us-east-2"
    assert {key: found.properties[key] for key in ("glue.id", "glue.endpoint")} == {
        "glue.id": "123",
        "glue.endpoint": "http://localhost:5000",
    }
    assert found.properties["s3.access-key-id"] == "FILES"
    assert found.system_properties == {"aws.accessKeyId": "AK", "aws.secretAccessKey": SECRET}


def test_hive_catalog() -> None:
    found = properties(catalog("thrift://metastore:9083", type="hive", **{"hive.hive2-compatible": "true"}))
    assert found == FILE_IO | {"type": "hive", "uri": "thrift://metastore:9083", "warehouse": WAREHOUSE}


def test_store_with_an_endpoint_url_uses_path_style_access() -> None:
    found = properties(catalog("thrift://m", type="hive"), s3("AKID", endpoint_url="http://127.0.0.1:9000"))
    assert (
        found.items()
        >= {
            "s3.endpoint": "http://127.0.0.1:9000",
            "s3.path-style-access": "true",
            "s3.access-key-id": "AKID",
            "s3.secret-access-key": SECRET,
        }.items()
    )


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"server_side_encryption": "AES256"}, {"s3.sse.type": "s3"}),
        ({"server_side_encryption": "aws:kms"}, {"s3.sse.type": "kms"}),
        (
            {"server_side_encryption": "aws:kms", "sse_kms_key_id": "alias/lake"},
            {"s3.sse.type": "kms", "s3.sse.key": "alias/lake"},
        ),
    ],
)
def test_encryption_settings_are_translated(extra: dict[str, str], expected: dict[str, str]) -> None:
    found = properties(catalog("thrift://m", type="hive"), s3("AKID", **extra))
    assert {key: value for key, value in found.items() if key.startswith("s3.sse")} == expected


def test_role_assumed_with_the_machines_own_keys_is_left_to_iceberg() -> None:
    role = "arn:aws:iam::123456789012:role/archive"
    arguments = {"RoleSessionName": "nightly", "ExternalId": "ours", "DurationSeconds": 7200}
    found = properties(catalog("thrift://m", type="hive"), s3(role_arn=role, assume_role_kwargs=arguments))
    assert {key: value for key, value in found.items() if key.startswith("client.")} == {
        "client.region": "eu-west-1",
        "client.factory": "org.apache.iceberg.aws.AssumeRoleAwsClientFactory",
        "client.assume-role.arn": role,
        "client.assume-role.region": "eu-west-1",
        "client.assume-role.session-name": "nightly",
        "client.assume-role.external-id": "ours",
        "client.assume-role.timeout-sec": "7200",
    }
    assert not any("access-key" in key for key in found)


def test_file_properties_of_the_catalogs_connection_override_those_of_s3s() -> None:
    given = {"s3.endpoint": "http://files:1", "s3.region": "us-west-1", "s3.force-virtual-addressing": True}
    found = properties(catalog("thrift://m", type="hive", **given), s3(endpoint_url="http://other:2"))
    assert found["s3.endpoint"] == "http://files:1"
    assert found["client.region"] == "us-west-1"
    assert found["s3.path-style-access"] == "false"


@pytest.mark.parametrize(
    ("host", "extra", "named"),
    [
        (
            "x",
            {"type": "dynamodb"},
            "Spark's jobs do not support catalogs of type 'dynamodb'; supported: sql, rest, glue, hive",
        ),
        ("sqlite:///:memory:", {"type": "sql"}, "in memory cannot be shared with Spark"),
        ("mysql://h/d", {"type": "sql"}, "Spark's jobs do not support SQL catalogs on mysql"),
        (f"postgres-{SECRET}", {"type": "sql"}, "its uri is no SQLAlchemy URL"),
        ("postgresql:///d?host=/tmp", {"type": "sql"}, "names no host"),
        ("postgresql://h/d?gssencmode=require", {"type": "sql"}, "gssencmode in its uri"),
        ("https://c", {"type": "rest", "auth": "oauth2"}, "auth in its extra only works in PyIceberg"),
        ("thrift://m", {"type": "hive", "ugi": "a:b"}, "ugi in its extra"),
        ("thrift://m", {"type": "hive", "hive.kerberos-authentication": True}, "hive.kerberos-authentication"),
        (None, {"type": "glue", "glue.profile-name": "lake"}, "glue.profile-name in its extra"),
        ("thrift://m", {"type": "hive", "s3.signer": "S3V4RestSigner"}, "cannot translate s3.signer in its extra"),
        ("thrift://m", {"type": "hive", "name": "a-b"}, "name 'a-b' in its extra"),
    ],
)
def test_unsupported_property_is_refused_by_name(host: str | None, extra: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(named)) as refusal:
        spark_catalog(catalog(host, **extra), s3())
    assert "connection 'lake'" in str(refusal.value)
    assert SECRET not in str(refusal.value)


def test_bucket_key_is_refused() -> None:
    store = s3(server_side_encryption="aws:kms", sse_bucket_key_enabled=True)
    with pytest.raises(ConfigError, match="Iceberg for Spark does not support sse_bucket_key_enabled in its extra"):
        spark_catalog(catalog("thrift://m", type="hive"), store)


def test_settings_have_the_prefix_of_the_catalogs_name() -> None:
    found = spark_catalog(catalog("sqlite:////c.db", type="sql", name="lake"), s3()).settings()
    assert found["spark.sql.catalog.lake"] == "org.apache.iceberg.spark.SparkCatalog"
    assert found["spark.sql.catalog.lake.uri"] == "jdbc:sqlite:/c.db"
    assert all(key.startswith("spark.sql.catalog.lake") for key in found)


def test_secrets_appear_in_no_log_repr_or_unredacted_setting(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        found = [
            spark_catalog(catalog(f"postgresql://u:{SECRET}@h/d", type="sql"), s3("AKID", aws_session_token=SECRET)),
            spark_catalog(catalog("https://c", type="rest", credential=f"i:{SECRET}", token=SECRET), s3()),
            spark_catalog(catalog(type="glue", **{"glue.secret-access-key": SECRET, "glue.access-key-id": "A"}), s3()),
        ]
    assert SECRET not in caplog.text
    for each in found:
        assert SECRET not in repr(each)
        _check_redacted(each)


def _check_redacted(found: SparkCatalog) -> None:
    secret = [key for key, value in found.settings().items() if SECRET in value]
    assert all(re.search(REDACTED, key) for key in secret), "Spark would show them in its UI and event log"


def test_jars_of_the_local_stack_equal_those_in_the_documentation() -> None:
    assert ICEBERG.coordinates == JARS
    page = (Path(__file__).parents[4] / "docs" / "your-own-kafka-and-s3.md").read_text()
    assert all(coordinate in page for coordinate in JARS)


@pytest.mark.parametrize(
    "name",
    [
        "header.Authorization",
        "header.X-Api-Key",
        "header.X-Tenant",
        "header.Cookie",
        "adls.sas-token.account.dfs.core.windows.net",
        "adls.sas.account",
        "adls.account-key",
        "adls.connection-string",
        "adls.auth.shared-key.account.key",
        "fs.azure.account.key.x.dfs.core.windows.net",
        "s3.access-key-id",
        "s3.secret-access-key",
        "s3.session-token",
        "gcs.oauth2.token",
        "credential",
        "token",
        "jdbc.password",
        "jdbc.sslpassword",
        "ssl.keystore.passphrase",
        "kms.private-key",
        "s3.sse.encryption-key",
    ],
)
def test_spark_hides_every_setting_whose_name_may_stand_for_a_secret(name: str) -> None:
    assert re.search(REDACTED, f"spark.sql.catalog.lake.{name}")


@pytest.mark.parametrize(
    "value",
    [
        "postgresql+psycopg://u:pw@h/d",
        "jdbc:postgresql://h/d?user=u&password=pw",
        "jdbc:sqlserver://h;user=u;Pwd=pw",
        "https://account.blob.core.windows.net/c?sv=2024&sig=abc%3D",
        "https://b.s3.amazonaws.com/k?X-Amz-Signature=ab12",
        "Bearer eyJhbGciOiJIUzI1NiJ9",
        "Basic dXNlcjpwYXNz",
        "org.apache.spark.deploy.SparkSubmit --conf spark.sql.catalog.lake.header.X-Api-Key=k job.py",
    ],
)
def test_spark_hides_a_value_that_contains_a_secret_whatever_its_name_is(value: str) -> None:
    assert re.search(REDACTED, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.master", "spark://h:7077"),
        ("spark.app.name", "partition flights"),
        ("spark.sql.catalog.lake.uri", "https://catalog.example.com:8181/v1?warehouse=w"),
        ("spark.sql.catalog.lake.warehouse", "s3://archive/warehouse"),
        ("spark.executor.memory", "2g"),
        ("spark.sql.catalog.lake.s3.endpoint", "http://127.0.0.1:7070"),
    ],
)
def test_spark_shows_what_is_no_secret(name: str, value: str) -> None:
    assert not re.search(REDACTED, name)
    assert not re.search(REDACTED, value)


def test_headers_of_a_rest_catalog_reach_spark_and_are_hidden() -> None:
    headers = {"header.Authorization": f"Bearer {SECRET}", "header.X-Api-Key": SECRET}
    found = spark_catalog(catalog("https://c", type="rest", **headers), s3())
    assert {key for key, value in found.properties.items() if SECRET in value} >= headers.keys()
    _check_redacted(found)
