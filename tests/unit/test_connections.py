"""Connections are parsed as Airflow parses them, and refused in messages that contain no secret."""

from __future__ import annotations

import json

import pytest

from waybill.base.errors import ConfigError, ConnectionMissing
from waybill.config.connections import (
    Access,
    AssumedRole,
    CatalogEndpoint,
    Connection,
    KafkaEndpoint,
    S3Endpoint,
    Sasl,
    SaslMechanism,
    SecurityProtocol,
    Tls,
    ZooKeeperEndpoint,
    find_connection,
)

SECRET = "s3cr3t-value"
ROLE = {"role_arn": "arn:aws:iam::123456789012:role/archive"}


def read(value: object, conn_id: str = "c") -> Connection:
    text = value if isinstance(value, str) else json.dumps(value)
    return find_connection(conn_id, {f"AIRFLOW_CONN_{conn_id.upper()}": text})


@pytest.mark.parametrize("environment", [{}, {"AIRFLOW_CONN_KAFKA_DEFAULT": "  "}])
def test_find_connection_names_a_missing_connection_and_the_remedy(environment: dict[str, str]) -> None:
    with pytest.raises(ConnectionMissing) as raised:
        find_connection("kafka_default", environment)
    assert str(raised.value) == (
        "connection 'kafka_default' is not defined: set the environment variable AIRFLOW_CONN_KAFKA_DEFAULT (JSON or "
        "URI, as Airflow reads it), or add it in Airflow's UI under Admin → Connections. For the local stack: source "
        ".waybill/env"
    )


def test_find_connection_reads_the_environment_of_the_process_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MINE", '{"conn_type": "kafka", "host": "h"}')
    assert find_connection("mine").host == "h"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("kafka://h1:19092", {"conn_type": "kafka", "host": "h1", "port": 19092}),
        ("aws://AK:se%2Fcret@/?region_name=eu", {"login": "AK", "password": "se/cret", "extra": {"region_name": "eu"}}),
        ("zookeeper://h:2181/chroot%2Fa", {"host": "h", "port": 2181, "path": "chroot/a"}),
        ("http://https://x.y:1/a", {"conn_type": "http", "host": "https://x.y", "port": 1, "path": "a"}),
        ("spark://local%5B2%5D", {"conn_type": "spark", "host": "local[2]"}),
        ("apache-iceberg://h", {"conn_type": "apache_iceberg"}),
        ("aws://?__extra__=%7B%22a%22%3A1%7D", {"extra": {"a": 1}}),
        ({"conn_type": "kafka", "port": "9092"}, {"port": 9092}),
        ({"extra": '{"a": "b"}'}, {"extra": {"a": "b"}}),
        ({"conn_type": "aws", "description": "ours", "extra": None}, {"conn_type": "aws", "extra": {}}),
    ],
)  # fmt: skip
def test_find_connection_parses_json_and_uris(value: object, expected: dict[str, object]) -> None:
    found = read(value)
    assert {field: getattr(found, field) for field in expected} == expected


@pytest.mark.parametrize(
    "value",
    [
        SECRET,
        f"{{{SECRET}",
        f'["{SECRET}"]',
        f"kafka://h:{SECRET}",
        f"a://b://c://{SECRET}",
        f'{{"port": "{SECRET}"}}',
        f'{{"port": 70000, "password": "{SECRET}"}}',
        f'{{"extra": "{SECRET}"}}',
        f'{{"extra": ["{SECRET}"]}}',
        f'{{"login": {{"{SECRET}": 1}}}}',
        f"aws://?__extra__={SECRET}",
    ],
)
def test_find_connection_refuses_a_malformed_value_without_quoting_it(value: str) -> None:
    with pytest.raises(ConfigError, match=r"^AIRFLOW_CONN_C is neither a connection's JSON nor its URI") as raised:
        read(value)
    assert SECRET not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


def test_repr_contains_no_secret() -> None:
    found = read({"conn_type": "aws", "login": SECRET, "password": SECRET, "extra": {"aws_session_token": SECRET}})
    assert SECRET not in repr(found) + repr(S3Endpoint.of(found))
    catalog = CatalogEndpoint.of(read({"host": f"postgresql://u:{SECRET}@h/db", "extra": {"type": "sql"}}))
    assert SECRET not in repr(catalog)


def test_to_environment_survives_a_round_trip() -> None:
    before = Connection(
        conn_id="c", conn_type="aws", host="h", port=1, login="l", password=SECRET, path="s", extra={"a": {"b": 1}}
    )
    assert read(before.to_environment()) == before


# --- endpoints --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "servers"),
    [
        ({"extra": {"bootstrap.servers": "h1:1, h2:2,"}}, ("h1:1", "h2:2")),
        ({"extra": {"bootstrap.servers": "h1,h2:2"}}, ("h1:9092", "h2:2")),
        ({"host": "h1,h2", "port": 19092}, ("h1:19092", "h2:19092")),
        ({"host": "h1:1,h2:2"}, ("h1:1", "h2:2")),
        ({"host": "[::1]"}, ("[::1]:9092",)),
        ({"host": "[::1]:19092"}, ("[::1]:19092",)),
        ({"host": "h", "extra": {"security.protocol": "plaintext"}}, ("h:9092",)),
    ],
)
def test_kafka_endpoint_reads_servers(value: object, servers: tuple[str, ...]) -> None:
    assert KafkaEndpoint.of(read(value)).bootstrap_servers == servers


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"conn_type": "kafka"}, "connection 'c' has no bootstrap.servers in its extra: set it in AIRFLOW_CONN_C"),
        ({"host": " , "}, "connection 'c' names no server"),
        ({"host": "h:port"}, "'h:port' is no address: write host:port, several separated by commas"),
        ({"host": "h:70000"}, "'h:70000' is no address"),
        ({"host": "http://h:1"}, "'http://h:1' is no address"),
        ({"extra": {"bootstrap.servers": ["h:1"]}}, "bootstrap.servers in its extra must be text"),
    ],
)
def test_kafka_endpoint_refuses_malformed_servers(value: object, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        KafkaEndpoint.of(read(value))
    assert message in str(raised.value)


SCRAM = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}
UNCHECKED = {"enable.ssl.certificate.verification": "no"}


def test_kafka_endpoint_reads_tls_and_sasl() -> None:
    extra = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanisms": "scram-sha-256",
        "sasl.username": "alice",
        "sasl.password": SECRET,
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": "/own.pem",
        "ssl.key.location": "/own.key",
        "ssl.key.password": SECRET,
        "ssl.endpoint.identification.algorithm": "none",
        "group.id": "of a consumer: not our affair",
    }
    endpoint = KafkaEndpoint.of(read({"host": "h", "extra": extra}))
    assert endpoint.protocol is SecurityProtocol.SASL_SSL
    assert endpoint.sasl == Sasl(mechanism=SaslMechanism.SCRAM_SHA_256, username="alice", password=SECRET)
    assert endpoint.tls == Tls(
        conn_id="c",
        ca_file="/ca.pem",
        certificate_file="/own.pem",
        key_file="/own.key",
        key_password=SECRET,
        check_hostname=False,
    )
    assert SECRET not in repr(endpoint)
    assert SECRET not in str(endpoint)


def test_kafka_endpoint_uses_login_and_password_for_sasl_when_the_extra_has_none() -> None:
    endpoint = KafkaEndpoint.of(read({"host": "h", "login": "bob", "password": SECRET, "extra": SCRAM}))
    assert endpoint.sasl == Sasl(mechanism=SaslMechanism.SCRAM_SHA_512, username="bob", password=SECRET)
    assert endpoint.tls == Tls(conn_id="c")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            {"extra": {"security.protocol": "TLS"}},
            "security.protocol 'TLS' in its extra is not supported: it can be PLA",
        ),
        (
            {"login": "a", "password": SECRET},
            "its login and password need security.protocol SASL_SSL or SASL_PLAINTEXT",
        ),
        ({"extra": {"sasl.username": "a"}}, "sasl.username in its extra needs security.protocol SASL_SSL or SASL_PL"),
        ({"extra": {"ssl.ca.location": "/ca"}}, "ssl.ca.location in its extra needs security.protocol SSL or SASL_SSL"),
        (
            {"extra": {"security.protocol": "SASL_SSL"}},
            "has no sasl.mechanism in its extra (PLAIN, SCRAM-SHA-256, SCRA",
        ),
        (
            {"extra": SCRAM | {"sasl.mechanism": "GSSAPI"}},
            "sasl.mechanism 'GSSAPI' in its extra is not supported: it can",
        ),
        ({"extra": SCRAM | {"sasl.mechanism": "OAUTHBEARER"}}, "'OAUTHBEARER' in its extra is not supported"),
        ({"extra": SCRAM}, "has no sasl.username in its extra and no login"),
        ({"login": "a", "extra": SCRAM}, "has no sasl.password in its extra and no password"),
        (
            {"extra": {"security.protocol": "SSL", "ssl.keystore.location": "x"}},
            "ssl.keystore.location in its extra is",
        ),
        ({"extra": {"security.protocol": "SSL", "ssl.key.location": "x"}}, "needs ssl.certificate.location beside it"),
        (
            {"extra": {"ssl.ca.certificate.stores": "Root"}},
            "is not supported; the security options are: enable.ssl.",
        ),
        ({"login": "a", "password": SECRET, "extra": SCRAM | UNCHECKED}, "must be true or false"),
    ],
)
def test_kafka_endpoint_refuses_security_options_that_it_would_ignore(value: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        KafkaEndpoint.of(read({"host": "h", **value}))
    assert message in str(raised.value)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("options", [
    {"ca_file": "/no/such/ca.pem"},
    {"ca_pem": "no certificate"},
    {"certificate_file": "/no/such/own.pem"},
])  # fmt: skip
def test_tls_names_an_unusable_file(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"connection 'c': the .* cannot be used: ") as raised:
        Tls(conn_id="c", key_password=SECRET, **options).context()
    assert all(value in str(raised.value) for key, value in options.items() if key.endswith("_file"))
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("value", "hosts", "chroot"),
    [
        ("zookeeper://h", "h:2181", ""),
        ("zookeeper://h:99/a", "h:99", "a"),
        ({"host": "h1,h2:3", "port": 5, "schema": "/a/b/"}, "h1:5,h2:3", "a/b"),
    ],
)
def test_zookeeper_endpoint_reads_hosts_and_chroot(value: object, hosts: str, chroot: str) -> None:
    endpoint = ZooKeeperEndpoint.of(read(value))
    assert (endpoint.hosts, endpoint.chroot) == (hosts, chroot)


@pytest.mark.parametrize(("value", "message"), [
    ({"conn_type": "zookeeper"}, "connection 'c' has no host"),
    ({"host": "h", "schema": "a/../b"}, "schema 'a/../b' is no path of a ZooKeeper node"),
    ({"host": "h", "schema": "a//b"}, "schema 'a//b' is no path of a ZooKeeper node"),
    ({"host": "h", "login": "a"}, "it lacks a password: give both, or none"),
    ({"host": "h", "login": "a:b", "password": SECRET}, "its login contains a colon"),
    ({"host": "h", "extra": {"ca": "/ca.pem"}}, "ca in its extra needs use_ssl: true beside it"),
    ({"host": "h", "extra": {"use_ssl": "yes"}}, "use_ssl in its extra must be true or false"),
    ({"host": "h", "extra": {"use_ssl": True, "keyfile": "k"}}, "keyfile in its extra needs certfile beside it"),
    ({"host": "h", "extra": {"acl": "creator"}}, "acl creator in its extra needs a login and password, or a client"),
    ({"host": "h", "extra": {"acl": "world"}}, "acl 'world' in its extra is not supported: it can be open, creator, "),
    ({"host": "h", "extra": {"sasl_options": {"mechanism": "DIGEST-MD5"}}}, "sasl_options in its extra is not su"),
])  # fmt: skip
def test_zookeeper_endpoint_refuses_invalid_connections(value: object, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        ZooKeeperEndpoint.of(read(value))
    assert message in str(raised.value)


@pytest.mark.parametrize(("value", "access", "tls"), [
    ({"login": "a", "password": SECRET}, Access.CREATOR, None),
    ({"login": "a", "password": SECRET, "extra": {"acl": "creator+read"}}, Access.CREATOR_AND_READERS, None),
    ({"login": "a", "password": SECRET, "extra": {"acl": "open"}}, Access.OPEN, None),
    ({"extra": {"use_ssl": "true", "ca": "/ca.pem"}}, Access.OPEN, Tls(conn_id="c", ca_file="/ca.pem")),
    (
        {"extra": {"use_ssl": True, "certfile": "/c", "keyfile": "/k", "verify_certs": False, "acl": "creator"}},
        Access.CREATOR,
        Tls(conn_id="c", certificate_file="/c", key_file="/k", verify=False),
    ),
])  # fmt: skip
def test_zookeeper_endpoint_reads_credentials_and_tls(
    value: dict[str, object], access: Access, tls: Tls | None
) -> None:
    endpoint = ZooKeeperEndpoint.of(read({"host": "h", **value}))
    assert (endpoint.access, endpoint.tls) == (access, tls)
    assert (endpoint.username, endpoint.password) == (value.get("login"), value.get("password"))
    assert SECRET not in repr(endpoint)


def test_s3_endpoint_of_an_empty_connection_uses_the_default_chain() -> None:
    assert S3Endpoint.of(read("aws://")) == S3Endpoint(conn_id="c")


def test_s3_endpoint_reads_keys() -> None:
    extra = {"endpoint_url": "http://h:1", "region_name": "eu-central-1", "aws_session_token": "t"}
    expected = S3Endpoint(
        conn_id="c",
        endpoint_url="http://h:1",
        region="eu-central-1",
        access_key="a",
        secret_key="b",
        session_token="t",
    )
    assert S3Endpoint.of(read({"login": "a", "password": "b", "extra": extra})) == expected
    in_extra = {"aws_access_key_id": "a", "aws_secret_access_key": "b", **extra}
    assert S3Endpoint.of(read({"extra": in_extra})) == expected


def test_s3_endpoint_reads_a_role() -> None:
    arguments = {"RoleSessionName": "wb", "ExternalId": SECRET, "DurationSeconds": 1800}
    sts = {"sts": {"endpoint_url": "https://sts.example.com"}}
    endpoint = S3Endpoint.of(
        read({"extra": ROLE | {"profile_name": "p", "assume_role_kwargs": arguments, "service_config": sts}})
    )
    assert endpoint.profile == "p"
    assert endpoint.role == AssumedRole(
        arn=ROLE["role_arn"],
        session_name="wb",
        external_id=SECRET,
        duration_seconds=1800,
        sts_endpoint_url="https://sts.example.com",
    )
    assert SECRET not in repr(endpoint)
    assert S3Endpoint.of(read({"extra": ROLE})).role == AssumedRole(arn=ROLE["role_arn"])


@pytest.mark.parametrize(("extra", "arguments"), [
    ({"server_side_encryption": "aes256"}, {"ServerSideEncryption": "AES256"}),
    ({"server_side_encryption": "aws:kms"}, {"ServerSideEncryption": "aws:kms"}),
    (
        {"server_side_encryption": "aws:kms", "sse_kms_key_id": "alias/k", "sse_bucket_key_enabled": "true"},
        {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "alias/k", "BucketKeyEnabled": True},
    ),
])  # fmt: skip
def test_s3_endpoint_reads_encryption(extra: dict[str, object], arguments: dict[str, object]) -> None:
    encryption = S3Endpoint.of(read({"extra": extra})).encryption
    assert encryption is not None
    assert encryption.arguments() == arguments


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"login": "AK"}, "connection 'c' lacks a secret key (password): give both, or none for boto3's own chain"),
        ({"password": SECRET}, "connection 'c' lacks an access key (login)"),
        ({"extra": {"endpoint_url": "h:9000"}}, "endpoint_url 'h:9000' must be http://… or https://…"),
        ({"login": "a", "password": SECRET, "extra": {"profile_name": "p"}}, "it has both keys and profile_name"),
        (
            {"extra": {"verify": False}},
            "verify in its extra can be the PEM file of a CA; skipping the",
        ),
        ({"extra": {"role_arn": "arn:x"}}, "role_arn 'arn:x' in its extra is no ARN of a role"),
        (
            {"extra": ROLE | {"assume_role_method": "assume_role_with_saml"}},
            "'assume_role_with_saml' in its extra is not",
        ),
        (
            {"extra": ROLE | {"assume_role_kwargs": {"Policy": "{}"}}},
            "Policy of assume_role_kwargs in its extra is not",
        ),
        (
            {"extra": ROLE | {"assume_role_kwargs": {"DurationSeconds": 900}}},
            "must be a whole number from 1800 to 4320",
        ),
        ({"extra": ROLE | {"assume_role_kwargs": {"RoleSessionName": "a b"}}}, "must be 2 to 64 of [A-Za-z0-9_+=,.@-]"),
        ({"extra": ROLE | {"assume_role_kwargs": "x"}}, "assume_role_kwargs in its extra must be a JSON object"),
        ({"extra": ROLE | {"service_config": {"sts": {"endpoint_url": "h"}}}}, "sts.endpoint_url 'h' must be http://"),
        (
            {"extra": {"server_side_encryption": "aes"}},
            "server_side_encryption 'aes' in its extra is not supported: it",
        ),
        ({"extra": {"sse_kms_key_id": "k"}}, "need server_side_encryption: aws:kms"),
        (
            {"extra": {"server_side_encryption": "AES256", "sse_kms_key_id": "k"}},
            "need server_side_encryption: aws:kms",
        ),
        ({"extra": {"region_name": 5}}, "region_name in its extra must be text"),
    ],
)
def test_s3_endpoint_refuses_options_that_it_would_ignore(value: object, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        S3Endpoint.of(read(value))
    assert message in str(raised.value)
    assert SECRET not in str(raised.value)


def test_catalog_endpoint_reads_pyiceberg_properties() -> None:
    value = {"host": "sqlite:////tmp/c.db", "extra": {"type": "sql", "warehouse": "s3://b/w", "echo": True, "n": 3}}
    assert CatalogEndpoint.of(read(value)).properties == {
        "uri": "sqlite:////tmp/c.db",
        "type": "sql",
        "warehouse": "s3://b/w",
        "echo": "true",
        "n": "3",
    }
    assert CatalogEndpoint.of(read({"extra": {"type": "glue"}})).properties == {"type": "glue"}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"host": "h"}, "connection 'c' has no 'type' in its extra (sql, rest, glue, hive)"),
        ({"extra": {"type": "rest"}}, "connection 'c' has no host (the catalog's URI)"),
        ({"host": "h", "extra": {"type": "sql", "x": {"a": 1}}}, "x in its extra must be text or a number"),
    ],
)
def test_catalog_endpoint_refuses_invalid_connections(value: object, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        CatalogEndpoint.of(read(value))
    assert message in str(raised.value)


def test_a_connection_that_is_nested_too_deeply_is_refused_as_any_other() -> None:
    with pytest.raises(ConfigError, match="AIRFLOW_CONN_X is neither"):
        find_connection("x", {"AIRFLOW_CONN_X": '{"extra": ' + "[" * 100_000})
