"""S3's connection: an Airflow AWS connection with keys, a profile or a role, and the encryption of objects."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from waybill.base.errors import ConfigError
from waybill.config.connections.connection import Connection, Endpoint

_ROLE = re.compile(r"arn:[a-z-]+:iam::[0-9]{12}:role/\S+")
_SESSION_NAME = re.compile(r"[A-Za-z0-9_+=,.@-]{2,64}")
_MIN_SECONDS, _MAX_SECONDS = 1800, 43200
_ASSUME_ROLE_ARGUMENTS = ("RoleSessionName", "ExternalId", "DurationSeconds")


class Encryption(BaseModel):
    """The encryption that Waybill requests for objects that it creates. Nothing in it is secret."""

    model_config = ConfigDict(frozen=True)

    algorithm: str
    """`AES256` (SSE-S3) or `aws:kms` (SSE-KMS)."""
    kms_key_id: str | None = None
    """Id, ARN or alias; None: the account's default key for S3."""
    bucket_key: bool | None = None
    """Whether S3 can use a bucket key, which needs fewer calls to KMS; None: the bucket's default."""

    def arguments(self) -> dict[str, Any]:
        """Return arguments for `PutObject`, `CreateMultipartUpload` and `CopyObject`, with botocore's names."""
        found: dict[str, Any] = {"ServerSideEncryption": self.algorithm}
        if self.kms_key_id is not None:
            found["SSEKMSKeyId"] = self.kms_key_id
        if self.bucket_key is not None:
            found["BucketKeyEnabled"] = self.bucket_key
        return found


class Checksums(StrEnum):
    """The checksum of each request body, which the store compares before it stores the body."""

    CRC32C = "crc32c"
    MD5 = "md5"
    """For stores that refuse or ignore the newer checksums: most know `Content-MD5`."""
    NONE = "none"
    """For stores that compare no checksum: damage on the way is found when the object is read."""


class AssumedRole(BaseModel):
    """A role that Waybill assumes with the connection's credentials. STS returns temporary keys, which are renewed."""

    model_config = ConfigDict(frozen=True)

    arn: str
    session_name: str = "waybill"
    external_id: str | None = Field(default=None, repr=False)
    duration_seconds: int | None = None
    """Lifetime of the temporary keys; None: STS's default, an hour."""
    sts_endpoint_url: str | None = None


class S3Endpoint(Endpoint):
    """Address and credentials of S3. All None: boto3's default chain (environment, profile, instance or pod role)."""

    endpoint_url: str | None = None
    region: str | None = None
    access_key: str | None = Field(default=None, repr=False)
    secret_key: str | None = Field(default=None, repr=False)
    session_token: str | None = Field(default=None, repr=False)
    profile: str | None = None
    """A profile of the AWS config files."""
    role: AssumedRole | None = None
    checksums: Checksums = Checksums.CRC32C
    encryption: Encryption | None = None
    """None: the bucket's default."""
    ca_file: str | None = None
    """PEM file of the CA that signed the endpoint's certificate; None: the CAs that botocore trusts."""

    @classmethod
    def of(cls, conn: Connection) -> S3Endpoint:
        """Read an Airflow AWS connection: login and password are the keys; extras have Airflow's names.

        Raises `ConfigError` for a connection that cannot be used, and for an option that Waybill would ignore.
        """
        access_key = conn.login or conn.text("aws_access_key_id")
        secret_key = conn.password or conn.text("aws_secret_access_key")
        if bool(access_key) != bool(secret_key):
            lacks = "a secret key (password)" if access_key else "an access key (login)"
            raise ConfigError(f"connection {conn.conn_id!r} lacks {lacks}: give both, or none for boto3's own chain")
        profile = conn.text("profile_name")
        if profile and access_key:
            conn.refuse("it has both keys and profile_name in its extra: give one of them")
        return cls(
            conn_id=conn.conn_id,
            endpoint_url=_url(conn, "endpoint_url", conn.text("endpoint_url")),
            region=conn.text("region_name"),
            access_key=access_key,
            secret_key=secret_key,
            session_token=conn.text("aws_session_token"),
            profile=profile,
            role=_role(conn),
            checksums=Checksums(conn.choice("checksums", Checksums, Checksums.CRC32C)),
            encryption=_encryption(conn),
            ca_file=_ca_file(conn),
        )


def _url(conn: Connection, key: str, url: Any) -> str | None:
    if url is not None and (not isinstance(url, str) or not re.match(r"https?://[^/]", url)):
        raise ConfigError(f"connection {conn.conn_id!r}: {key} {url!r} must be http://… or https://…")
    return url or None


def _ca_file(conn: Connection) -> str | None:
    verify = conn.extra.get("verify")
    if verify in (None, True, ""):
        return None
    if not isinstance(verify, str):
        conn.refuse("verify in its extra can be the PEM file of a CA; skipping the certificate check is not supported")
    return verify


def _role(conn: Connection) -> AssumedRole | None:
    arn = conn.text("role_arn")
    if arn is None:
        return None
    if not _ROLE.fullmatch(arn):
        conn.refuse(f"role_arn {arn!r} in its extra is no ARN of a role (arn:aws:iam::123456789012:role/name)")
    method = conn.text("assume_role_method") or "assume_role"
    if method != "assume_role":
        conn.refuse(
            f"assume_role_method {method!r} in its extra is not supported: with a web identity leave role_arn out, "
            f"and set AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE"
        )
    arguments = _section(conn, "assume_role_kwargs")
    if unknown := sorted(arguments.keys() - set(_ASSUME_ROLE_ARGUMENTS)):
        known = ", ".join(_ASSUME_ROLE_ARGUMENTS)
        conn.refuse(f"{unknown[0]} of assume_role_kwargs in its extra is not supported; it can hold {known}")
    name = arguments.get("RoleSessionName", "waybill")
    if not isinstance(name, str) or not _SESSION_NAME.fullmatch(name):
        conn.refuse("RoleSessionName of assume_role_kwargs in its extra must be 2 to 64 of [A-Za-z0-9_+=,.@-]")
    seconds = arguments.get("DurationSeconds")
    if seconds is not None and not (isinstance(seconds, int) and _MIN_SECONDS <= seconds <= _MAX_SECONDS):
        conn.refuse(
            f"DurationSeconds of assume_role_kwargs in its extra must be a whole number from {_MIN_SECONDS} to "
            f"{_MAX_SECONDS}: keys are renewed a quarter of an hour before they end"
        )
    external_id = arguments.get("ExternalId") or conn.text("external_id")
    if external_id is not None and not isinstance(external_id, str):
        conn.refuse("ExternalId of assume_role_kwargs in its extra must be text")
    return AssumedRole(
        arn=arn,
        session_name=name,
        external_id=external_id,
        duration_seconds=seconds,
        sts_endpoint_url=service_url(conn, "sts"),
    )


def service_url(conn: Connection, service: str) -> str | None:
    """Return the URL in `{"service_config": {"<service>": {"endpoint_url": "https://…"}}}`, as Airflow names it."""
    options = _section(conn, "service_config").get(service, {})
    if not isinstance(options, dict):
        conn.refuse(f"service_config.{service} in its extra must be a JSON object")
    return _url(conn, f"service_config.{service}.endpoint_url", options.get("endpoint_url"))


def _section(conn: Connection, key: str) -> dict[str, Any]:
    found = conn.extra.get(key) or {}
    if not isinstance(found, dict):
        conn.refuse(f"{key} in its extra must be a JSON object")
    return found


def _encryption(conn: Connection) -> Encryption | None:
    key = conn.text("sse_kms_key_id")
    bucket_key = conn.flag("sse_bucket_key_enabled", False) if "sse_bucket_key_enabled" in conn.extra else None
    if not conn.text("server_side_encryption"):
        if key or bucket_key is not None:
            conn.refuse("sse_kms_key_id and sse_bucket_key_enabled in its extra need server_side_encryption: aws:kms")
        return None
    algorithm = conn.choice("server_side_encryption", ("AES256", "aws:kms"), "")
    if algorithm == "AES256" and (key or bucket_key is not None):
        conn.refuse("sse_kms_key_id and sse_bucket_key_enabled in its extra need server_side_encryption: aws:kms")
    return Encryption(algorithm=algorithm, kms_key_id=key, bucket_key=bucket_key)
