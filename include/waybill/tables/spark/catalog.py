"""Settings of Iceberg's Java library in Spark, from the connections of the catalog and of S3.

PyIceberg and Iceberg for Spark read the same catalogs, but their properties have different names. The settings contain
secrets. They are set in a running session only, never on a command line or in a configuration file, and Spark redacts
them (`REDACTED` in `waybill.tables.spark.session`).

A property that has no equivalent in Iceberg for Spark is refused by name, since it may concern security.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from waybill.base.errors import ConfigError
from waybill.config.connections import CatalogEndpoint, S3Endpoint
from waybill.services.clients.s3 import find_region, renewed_keys

JARS = (
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0",
    "org.apache.iceberg:iceberg-aws-bundle:1.11.0",
    "org.xerial:sqlite-jdbc:3.50.3.0",
    "org.postgresql:postgresql:42.7.12",
)
"""Maven coordinates of the jars that Spark needs. The last two are for SQL catalogs; one of them is enough."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DEFAULT_NAME = "waybill"
_SQLITE_BUSY_TIMEOUT_MS = 60_000
_HANDLED_ELSEWHERE = frozenset({"type", "name", "uri", "warehouse", "py-io-impl"})

# Properties of the catalog's connection that concern files: those with another name in Java, those with the same name,
# and those that only PyIceberg has, which can be ignored.
_RENAMED = {"s3.region": "client.region"}
_SAME_NAME = frozenset(
    {
        *("s3.endpoint", "s3.access-key-id", "s3.secret-access-key", "s3.session-token", "client.region"),
        *("s3.path-style-access", "s3.sse.type", "s3.sse.key"),
    }
)
_PYTHON_ONLY = frozenset(
    {
        *("echo", "pool_pre_ping", "init_catalog_tables", "downcast-ns-timestamp-to-us-on-write"),
        *("s3.connect-timeout", "s3.request-timeout", "s3.resolve-region", "s3.retry-strategy-impl"),
        *("glue.max-retries", "glue.retry-mode", "rest.sigv4.max-retries", "hive.hive2-compatible"),
        *("lock-check-min-wait-time", "lock-check-max-wait-time", "lock-check-retries"),
    }
)
_REST_PROPERTY = re.compile(
    r"credential|token|scope|audience|resource|prefix|oauth2-server-uri|token-refresh-enabled|snapshot-loading-mode|"
    r"rest-page-size|namespace-separator|view-endpoints-supported|scan-planning-mode|header\..+|"
    r"rest\.(?:sigv4-enabled|signing-name|signing-region|access-key-id|secret-access-key|session-token)"
)
_GLUE_PROPERTY = re.compile(r"glue\.(?:id|endpoint|skip-archive)")
_GLUE_KEYS = {
    "access-key-id": "aws.accessKeyId",
    "secret-access-key": "aws.secretAccessKey",
    "session-token": "aws.sessionToken",
}
# Options of a Postgres URI, by their name in libpq: the first ones have the same name in Postgres's Java driver.
_POSTGRES_OPTIONS = {
    **{name: name for name in ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword", "options")},
    "connect_timeout": "connectTimeout",
    "application_name": "ApplicationName",
}
_DELEGATION = "header.X-Iceberg-Access-Delegation"


@dataclass(frozen=True, slots=True)
class SparkCatalog:
    """The configuration of a catalog in Spark."""

    name: str
    """The name of the catalog in SQL. A SQL catalog stores it with each table, so it must be the name that PyIceberg
    uses."""
    properties: Mapping[str, str] = field(repr=False)
    """Properties of Iceberg's Java catalog and its `S3FileIO`. They contain secrets."""
    system_properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """System properties of the driver's JVM, for settings without a property in Iceberg. They contain secrets."""
    ca_file: str | None = None
    """Path of a PEM file with CAs to trust in addition to the JVM's own."""

    def settings(self) -> dict[str, str]:
        """Return the settings `spark.sql.catalog.…`."""
        prefix = f"spark.sql.catalog.{self.name}"
        return {prefix: "org.apache.iceberg.spark.SparkCatalog"} | {
            f"{prefix}.{key}": value for key, value in sorted(self.properties.items())
        }


def spark_catalog(catalog: CatalogEndpoint, s3: S3Endpoint) -> SparkCatalog:
    """Return the catalog's configuration in Spark, from the connections of the catalog and of S3.

    If S3's keys come from a profile, or from a role that other keys assume, temporary keys are fetched here. They are
    not renewed: a job that takes longer than they are valid needs a longer `DurationSeconds`.

    Raises `ConfigError` that names a property which Iceberg for Spark does not support.
    """
    given = catalog.properties
    name = given.get("name", _DEFAULT_NAME)
    if not _NAME.fullmatch(name):
        _refuse(catalog, f"name {name!r} in its extra is no name of a catalog in Spark: use letters, digits and _")
    kind = given["type"].lower()
    if kind not in _KINDS:
        _refuse(catalog, f"Spark's jobs do not support catalogs of type {kind!r}; supported: {', '.join(_KINDS)}")
    properties = _file_io(s3, glue=kind == "glue")
    if "warehouse" in given:
        properties["warehouse"] = given["warehouse"]
    properties |= _KINDS[kind](catalog)
    system = _glue_keys(catalog) if kind == "glue" else {}
    properties |= _file_properties(catalog, kind)
    properties["cache-enabled"] = "false"  # jobs must see commits that others make to a table in the meantime
    return SparkCatalog(name, properties, system, s3.ca_file)


def _sql(catalog: CatalogEndpoint) -> dict[str, str]:
    try:
        url = make_url(catalog.properties["uri"])
    except (ArgumentError, ValueError):
        # SQLAlchemy's message would repeat the URI with the password.
        _refuse(catalog, "its uri is no SQLAlchemy URL (such as sqlite:////path or postgresql+psycopg://user@host/db)")
    backend = url.get_backend_name()
    if backend not in _DATABASES:
        supported = ", ".join(_DATABASES)
        _refuse(catalog, f"Spark's jobs do not support SQL catalogs on {backend}; supported: {supported}")
    return _DATABASES[backend](catalog, url)


def _sqlite(catalog: CatalogEndpoint, url: URL) -> dict[str, str]:
    if not url.database or url.database == ":memory:":
        _refuse(catalog, "a SQLite catalog in memory cannot be shared with Spark: give the path of a file")
    return {
        "type": "jdbc",
        "uri": f"jdbc:sqlite:{url.database}",
        # Other processes lock the file for a moment: wait for the lock instead of failing.
        "jdbc.busy_timeout": str(_SQLITE_BUSY_TIMEOUT_MS),
    }


def _postgres(catalog: CatalogEndpoint, url: URL) -> dict[str, str]:
    if not url.host:
        _refuse(catalog, "its uri names no host: Postgres's Java driver does not support Unix sockets")
    host = f"[{url.host}]" if ":" in url.host else url.host
    address = f"{host}:{url.port or 5432}/{url.database or url.username or ''}"
    properties = {"type": "jdbc", "uri": f"jdbc:postgresql://{address}"}
    for key, value in (("user", url.username), ("password", url.password)):
        if value is not None:
            properties[f"jdbc.{key}"] = str(value)
    for key, text in url.normalized_query.items():
        if key not in _POSTGRES_OPTIONS:
            supported = ", ".join(_POSTGRES_OPTIONS)
            _refuse(catalog, f"{key} in its uri is no option of Postgres's Java driver; supported: {supported}")
        properties[f"jdbc.{_POSTGRES_OPTIONS[key]}"] = text[-1]
    return properties


_DATABASES = {"sqlite": _sqlite, "postgresql": _postgres}


def _rest(catalog: CatalogEndpoint) -> dict[str, str]:
    # PyIceberg asks the server for vended credentials by default, so Spark must, too: else their keys would differ.
    properties = {"type": "rest", "uri": catalog.properties["uri"], _DELEGATION: "vended-credentials"}
    for key, value in catalog.properties.items():
        if key in {"auth", "ssl"} or key.startswith(("auth.", "ssl.")):
            _refuse(catalog, f"{key} in its extra only works in PyIceberg: use credential, token or header.… instead")
        if _REST_PROPERTY.fullmatch(key):
            properties[key] = value
    return properties


def _glue(catalog: CatalogEndpoint) -> dict[str, str]:
    given = catalog.properties
    for key in ("glue.profile-name", "client.profile-name", "client.role-arn"):
        if key in given:
            _refuse(catalog, f"Iceberg for Spark does not support {key} in its extra: set AWS_PROFILE instead")
    properties = {"type": "glue"} | {key: value for key, value in given.items() if _GLUE_PROPERTY.fullmatch(key)}
    if "glue.region" in given:
        properties["client.region"] = given["glue.region"]
    return properties


def _glue_keys(catalog: CatalogEndpoint) -> dict[str, str]:
    """Return Glue's keys as system properties: Iceberg's Glue client has no property for them, unlike `S3FileIO`."""
    properties = {}
    for key, system in _GLUE_KEYS.items():
        value = catalog.properties.get(f"glue.{key}") or catalog.properties.get(f"client.{key}")
        if value:
            properties[system] = value
    return properties


def _hive(catalog: CatalogEndpoint) -> dict[str, str]:
    given = catalog.properties
    for key in ("ugi", "hive.kerberos-authentication", "hive.kerberos-service-name"):
        if given.get(key, "false") != "false":
            _refuse(
                catalog,
                f"Iceberg for Spark does not support {key} in its extra: set HADOOP_USER_NAME, or pass --principal and "
                f"--keytab to spark-submit",
            )
    return {"type": "hive", "uri": given["uri"]}


_KINDS = {"sql": _sql, "rest": _rest, "glue": _glue, "hive": _hive}


def _file_properties(catalog: CatalogEndpoint, kind: str) -> dict[str, str]:
    """Return the catalog connection's properties about files, which override those of S3's connection.

    Raises `ConfigError` for an unknown property.
    """
    properties = {}
    for key, value in catalog.properties.items():
        if key in _HANDLED_ELSEWHERE or key in _PYTHON_ONLY or _belongs_to_kind(key, kind):
            continue
        if key == "s3.force-virtual-addressing":
            properties["s3.path-style-access"] = "false" if value == "true" else "true"
        elif key in _RENAMED:
            properties[_RENAMED[key]] = value
        elif key in _SAME_NAME:
            properties[key] = value
        else:
            _refuse(catalog, f"Waybill cannot translate {key} in its extra to a property of Iceberg for Spark")
    return properties


def _belongs_to_kind(key: str, kind: str) -> bool:
    if kind == "rest":
        return _REST_PROPERTY.fullmatch(key) is not None
    if kind == "glue":
        return key.startswith("glue.") or key.removeprefix("client.") in _GLUE_KEYS
    return kind == "hive" and (key == "ugi" or key.startswith("hive."))


def _file_io(s3: S3Endpoint, *, glue: bool) -> dict[str, str]:
    properties = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", "client.region": find_region(s3)}
    if s3.endpoint_url:
        # As Waybill's own client does: stores that are compatible with S3 have no host name for each bucket.
        properties |= {"s3.endpoint": s3.endpoint_url, "s3.path-style-access": "true"}
    return properties | _keys(s3, glue=glue) | _encryption(s3)


def _keys(s3: S3Endpoint, *, glue: bool) -> dict[str, str]:
    role = s3.role
    if role is not None and not (s3.access_key or s3.profile or role.sts_endpoint_url or glue):
        # The only case that Iceberg's own factory supports; it also renews the keys. Not with Glue: the factory would
        # assume the role for Glue as well.
        properties = {
            "client.factory": "org.apache.iceberg.aws.AssumeRoleAwsClientFactory",
            "client.assume-role.arn": role.arn,
            "client.assume-role.region": find_region(s3),
            "client.assume-role.session-name": role.session_name,
            "client.assume-role.external-id": role.external_id,
            "client.assume-role.timeout-sec": str(role.duration_seconds) if role.duration_seconds else None,
        }
        return {key: value for key, value in properties.items() if value is not None}
    keys = renewed_keys(s3)
    values = (
        (s3.access_key, s3.secret_key, s3.session_token)
        if keys is None
        else (keys.access_key, keys.secret_key, keys.token)
    )
    names = ("s3.access-key-id", "s3.secret-access-key", "s3.session-token")
    return {name: value for name, value in zip(names, values, strict=True) if value}


def _encryption(s3: S3Endpoint) -> dict[str, str]:
    encryption = s3.encryption
    if encryption is None:
        return {}
    if encryption.bucket_key is not None:
        raise ConfigError(
            f"{s3.remedy}: Iceberg for Spark does not support sse_bucket_key_enabled in its extra: remove it, and "
            f"set it for the bucket"
        )
    if encryption.algorithm == "AES256":
        return {"s3.sse.type": "s3"}
    key = {"s3.sse.key": encryption.kms_key_id} if encryption.kms_key_id else {}
    return {"s3.sse.type": "kms", **key}


def _refuse(catalog: CatalogEndpoint, reason: str) -> NoReturn:
    raise ConfigError(f"{catalog.remedy}: {reason}")
