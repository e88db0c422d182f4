"""The Iceberg catalog in Spark: what our two connections mean to Iceberg's Java library.

PyIceberg and Iceberg for Spark read the same catalogs and have other words for how to reach them. The settings hold
secrets. They are given to a session that runs, never to a command line or to Spark's own configuration, and Spark shows
them nowhere (`spark.redaction.regex`, see `waybill.spark.session`).

What cannot be followed is refused by name, above all what says how to be secure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from waybill.clients.s3 import find_region, renewed_keys
from waybill.connections import CatalogEndpoint, S3Endpoint
from waybill.errors import ConfigError

__all__ = ["JARS", "SparkCatalog", "spark_catalog"]

JARS = (
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0",
    "org.apache.iceberg:iceberg-aws-bundle:1.11.0",
    "org.xerial:sqlite-jdbc:3.50.3.0",
    "org.postgresql:postgresql:42.7.8",
)
"""Maven coordinates of what Spark needs for our tables; the two last are for SQL catalogs, one of them is enough."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DEFAULT_NAME = "waybill"
_SQLITE_PATIENCE_MS = 60_000
_OURS = frozenset({"type", "name", "uri", "warehouse", "py-io-impl"})

# Properties that have another name in Java, or none since they only concern PyIceberg.
_RENAMED = {"s3.region": "client.region"}
_AS_THEY_ARE = frozenset(
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
_OF_REST = re.compile(
    r"credential|token|scope|audience|resource|prefix|oauth2-server-uri|token-refresh-enabled|snapshot-loading-mode|"
    r"rest-page-size|namespace-separator|view-endpoints-supported|scan-planning-mode|header\..+|"
    r"rest\.(?:sigv4-enabled|signing-name|signing-region|access-key-id|secret-access-key|session-token)"
)
_OF_GLUE = re.compile(r"glue\.(?:id|endpoint|skip-archive)")
_GLUE_KEYS = {
    "access-key-id": "aws.accessKeyId",
    "secret-access-key": "aws.secretAccessKey",
    "session-token": "aws.sessionToken",
}
# Postgres's own driver has the names of libpq for these, and others for those.
_POSTGRES_OPTIONS = {
    **{name: name for name in ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword", "options")},
    "connect_timeout": "connectTimeout",
    "application_name": "ApplicationName",
}
_DELEGATION = "header.X-Iceberg-Access-Delegation"


@dataclass(frozen=True, slots=True)
class SparkCatalog:
    """A catalog as Spark knows it."""

    name: str
    """Its name in SQL. A SQL catalog keeps its tables under it, so it is the name that PyIceberg opens it by."""
    properties: Mapping[str, str] = field(repr=False)
    """Of Iceberg's Java catalog and its `S3FileIO`. They hold secrets."""
    system_properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Of the driver's JVM, where Iceberg's library has no property of its own. They hold secrets."""
    ca_file: str | None = None
    """PEM: who else is trusted as the signer of a server's certificate."""

    def settings(self) -> dict[str, str]:
        """As `spark.sql.catalog.…`."""
        prefix = f"spark.sql.catalog.{self.name}"
        return {prefix: "org.apache.iceberg.spark.SparkCatalog"} | {
            f"{prefix}.{key}": value for key, value in sorted(self.properties.items())
        }


def spark_catalog(catalog: CatalogEndpoint, s3: S3Endpoint) -> SparkCatalog:
    """What the connections of the catalog and of S3 say, for Spark.

    Where S3's keys come from a role that is taken on with other keys, or from a profile, they are asked for here, and
    are good for as long as they are: a job that takes longer needs a longer `DurationSeconds`.

    Raises `ConfigError` that names what Iceberg for Spark cannot follow.
    """
    given = catalog.properties
    name = given.get("name", _DEFAULT_NAME)
    if not _NAME.fullmatch(name):
        _refuse(catalog, f"name {name!r} in its extra cannot be that of a catalog in Spark: letters, digits and _")
    kind = given["type"].lower()
    if kind not in _KINDS:
        _refuse(catalog, f"catalogs of type {kind!r} cannot be used by Spark's jobs; there are: {', '.join(_KINDS)}")
    properties = _file_io(s3, glue=kind == "glue")
    if "warehouse" in given:
        properties["warehouse"] = given["warehouse"]
    properties |= _KINDS[kind](catalog)
    system = _glue_keys(catalog) if kind == "glue" else {}
    properties |= _further(catalog, kind)
    properties["cache-enabled"] = "false"  # jobs look at a table again and again while others commit to it
    return SparkCatalog(name, properties, system, s3.ca_file)


def _sql(catalog: CatalogEndpoint) -> dict[str, str]:
    try:
        url = make_url(catalog.properties["uri"])
    except (ArgumentError, ValueError):
        # Its own message would repeat the URI, with the password.
        _refuse(catalog, "its uri is not one of SQLAlchemy's (sqlite:////path, postgresql+psycopg://user@host/db)")
    backend = url.get_backend_name()
    if backend not in _DATABASES:
        known = ", ".join(_DATABASES)
        _refuse(catalog, f"SQL catalogs on {backend} cannot be used by Spark's jobs; there are: {known}")
    return _DATABASES[backend](catalog, url)


def _sqlite(catalog: CatalogEndpoint, url: URL) -> dict[str, str]:
    if not url.database or url.database == ":memory:":
        _refuse(catalog, "a SQLite catalog in memory cannot be shared with Spark: name a file")
    return {
        "type": "jdbc",
        "uri": f"jdbc:sqlite:{url.database}",
        # The file is one for all processes: wait for its lock rather than fail.
        "jdbc.busy_timeout": str(_SQLITE_PATIENCE_MS),
    }


def _postgres(catalog: CatalogEndpoint, url: URL) -> dict[str, str]:
    if not url.host:
        _refuse(catalog, "its uri names no host: Postgres's Java driver knows no sockets of the file system")
    found = {"type": "jdbc"}
    host = f"[{url.host}]" if ":" in url.host else url.host
    found["uri"] = f"jdbc:postgresql://{host}:{url.port or 5432}/{url.database or url.username or ''}"
    for key, value in (("user", url.username), ("password", url.password)):
        if value is not None:
            found[f"jdbc.{key}"] = str(value)
    for key, text in url.normalized_query.items():
        if key not in _POSTGRES_OPTIONS:
            known = ", ".join(_POSTGRES_OPTIONS)
            _refuse(catalog, f"{key} in its uri cannot be told to Postgres's Java driver; there are: {known}")
        found[f"jdbc.{_POSTGRES_OPTIONS[key]}"] = text[-1]
    return found


_DATABASES = {"sqlite": _sqlite, "postgresql": _postgres}


def _rest(catalog: CatalogEndpoint) -> dict[str, str]:
    # PyIceberg asks for it unless told otherwise, and so must Spark: else the two would have other keys.
    found = {"type": "rest", "uri": catalog.properties["uri"], _DELEGATION: "vended-credentials"}
    for key, value in catalog.properties.items():
        if key in {"auth", "ssl"} or key.startswith(("auth.", "ssl.")):
            _refuse(catalog, f"{key} in its extra is PyIceberg's alone: give credential, token or header.… instead")
        if _OF_REST.fullmatch(key):
            found[key] = value
    return found


def _glue(catalog: CatalogEndpoint) -> dict[str, str]:
    given = catalog.properties
    for key in ("glue.profile-name", "client.profile-name", "client.role-arn"):
        if key in given:
            _refuse(catalog, f"{key} in its extra cannot be followed by Iceberg for Spark: set AWS_PROFILE instead")
    found = {"type": "glue"} | {key: value for key, value in given.items() if _OF_GLUE.fullmatch(key)}
    if "glue.region" in given:
        found["client.region"] = given["glue.region"]
    return found


def _glue_keys(catalog: CatalogEndpoint) -> dict[str, str]:
    """Iceberg's client of Glue takes its keys from the JVM; S3's are given to `S3FileIO` in properties."""
    found = {}
    for key, system in _GLUE_KEYS.items():
        value = catalog.properties.get(f"glue.{key}") or catalog.properties.get(f"client.{key}")
        if value:
            found[system] = value
    return found


def _hive(catalog: CatalogEndpoint) -> dict[str, str]:
    given = catalog.properties
    for key in ("ugi", "hive.kerberos-authentication", "hive.kerberos-service-name"):
        if given.get(key, "false") != "false":
            _refuse(
                catalog,
                f"{key} in its extra cannot be followed by Iceberg for Spark: set HADOOP_USER_NAME, or give "
                f"spark-submit its --principal and --keytab",
            )
    return {"type": "hive", "uri": given["uri"]}


_KINDS = {"sql": _sql, "rest": _rest, "glue": _glue, "hive": _hive}


def _further(catalog: CatalogEndpoint, kind: str) -> dict[str, str]:
    """What the catalog's connection says of files, over what S3's does. The rest is refused, never passed over."""
    found = {}
    for key, value in catalog.properties.items():
        if key in _OURS or key in _PYTHON_ONLY or _is_of_kind(key, kind):
            continue
        if key == "s3.force-virtual-addressing":
            found["s3.path-style-access"] = "false" if value == "true" else "true"
        elif key in _RENAMED:
            found[_RENAMED[key]] = value
        elif key in _AS_THEY_ARE:
            found[key] = value
        else:
            _refuse(catalog, f"{key} in its extra has no meaning to Iceberg for Spark that is known here")
    return found


def _is_of_kind(key: str, kind: str) -> bool:
    if kind == "rest":
        return _OF_REST.fullmatch(key) is not None
    if kind == "glue":
        return key.startswith("glue.") or key.removeprefix("client.") in _GLUE_KEYS
    return kind == "hive" and (key == "ugi" or key.startswith("hive."))


def _file_io(s3: S3Endpoint, *, glue: bool) -> dict[str, str]:
    found = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", "client.region": find_region(s3)}
    if s3.endpoint_url:
        # As our own client does: a store that stands in for S3 has no host name for each bucket.
        found |= {"s3.endpoint": s3.endpoint_url, "s3.path-style-access": "true"}
    return found | _keys(s3, glue=glue) | _encryption(s3)


def _keys(s3: S3Endpoint, *, glue: bool) -> dict[str, str]:
    role = s3.role
    if role is not None and not (s3.access_key or s3.profile or role.sts_endpoint_url or glue):
        # The one case that Iceberg's own factory knows, and renews. It would take on the role for Glue, too.
        found = {
            "client.factory": "org.apache.iceberg.aws.AssumeRoleAwsClientFactory",
            "client.assume-role.arn": role.arn,
            "client.assume-role.region": find_region(s3),
            "client.assume-role.session-name": role.session_name,
            "client.assume-role.external-id": role.external_id,
            "client.assume-role.timeout-sec": str(role.duration_seconds) if role.duration_seconds else None,
        }
        return {key: value for key, value in found.items() if value is not None}
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
            f"{s3.remedy}: sse_bucket_key_enabled in its extra cannot be told to Iceberg for Spark: leave it out, and "
            f"set it for the bucket"
        )
    if encryption.algorithm == "AES256":
        return {"s3.sse.type": "s3"}
    key = {"s3.sse.key": encryption.kms_key_id} if encryption.kms_key_id else {}
    return {"s3.sse.type": "kms", **key}


def _refuse(catalog: CatalogEndpoint, what: str) -> NoReturn:
    raise ConfigError(f"{catalog.remedy}: {what}")
