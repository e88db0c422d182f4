"""Calls to S3: how long an answer is waited for, how often it is asked for, and what it means when it is no."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, NoReturn

from botocore.config import Config as BotoConfig
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

from waybill.clients.s3 import role_refused, s3_client
from waybill.connections import S3Endpoint
from waybill.errors import ConfigError, ObjectAlreadyThere, ObjectMissing, StoreUnavailable

__all__ = ["UPLOAD_THREADS", "Calls", "body_of", "checksum_header", "client_of", "conflict_pauses", "error_code"]

UPLOAD_THREADS = 2
_CONNECT_TIMEOUT_SECONDS = 5
# All tries of a call together end before the two minutes that a lane's task has beyond its budget.
_READ_TIMEOUT_SECONDS = 20
_ATTEMPTS = 5
_CONFLICT_ATTEMPTS = 4
_CONFLICT_PAUSE_SECONDS = 0.2

_NOT_ALLOWED = frozenset(
    {
        "AccessDenied",
        "AllAccessDisabled",
        "ExpiredToken",
        "Forbidden",
        "InvalidAccessKeyId",
        "InvalidToken",
        "SignatureDoesNotMatch",
        "XAdminUserNotFound",  # versitygw's word for InvalidAccessKeyId
    }
)
_NOT_ENCRYPTED = frozenset({"InvalidEncryptionAlgorithmError", "NotImplemented"})
_ALREADY_THERE = frozenset({"PreconditionFailed"})
_IN_FLIGHT = frozenset({"ConditionalRequestConflict"})
_GONE = frozenset({"NoSuchKey", "NotFound"})


class Calls:
    """botocore's client of one bucket, and its errors as ours. Safe to use from several threads."""

    def __init__(self, endpoint: S3Endpoint, bucket: str) -> None:
        self.client = client_of(endpoint)
        self.bucket = bucket
        self.encryption: dict[str, Any] = endpoint.encryption.arguments() if endpoint.encryption else {}
        """Arguments for every call that creates an object."""
        self._endpoint = endpoint
        self._where = f"bucket {bucket!r}" + (f" at {endpoint.endpoint_url}" if endpoint.endpoint_url else "")

    def head(self, key: str) -> Mapping[str, Any]:
        """S3's answer to HeadObject. Raises `ObjectMissing` if there is no such object."""
        with self.mapped(f"look up {key}", key):
            answer: Mapping[str, Any] = self.client.head_object(Bucket=self.bucket, Key=key)
            return answer

    def exists(self, key: str) -> bool:
        """Whether there is an object of that name now."""
        try:
            self.head(key)
        except ObjectMissing:
            return False
        return True

    def check_encryption(self, key: str, answer: Mapping[str, Any]) -> None:
        """Raise `ConfigError` unless S3's answer to a call that creates says that it encrypts as it was told to."""
        wanted = self.encryption.get("ServerSideEncryption")
        if wanted is not None and answer.get("ServerSideEncryption") != wanted:
            raise ConfigError(
                f"{self._where}: {key}: the store passes over server_side_encryption {wanted!r} of "
                f"{self._endpoint.remedy}. Take it out, and encrypt the bucket by other means"
            )

    @contextmanager
    def mapped(self, what: str, key: str = "", conflict: float | None = None) -> Iterator[None]:
        """Turn botocore's errors into ours. `conflict`: seconds to wait and pass over a rival's call in flight."""
        try:
            yield
        except ClientError as error:
            if error_code(error) in _IN_FLIGHT and conflict is not None:
                # A 409 means that a rival's create is in flight, not that it won: ask again.
                time.sleep(conflict)
                return
            self._raise(error, what, key)
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise ConfigError(
                f"{self._where}: could not {what}: {error}. Set them in {self._endpoint.remedy}"
            ) from error
        except (BotoCoreError, OSError) as error:
            raise StoreUnavailable(f"{self._where}: could not {what}: {error}") from error

    def _raise(self, error: ClientError, what: str, key: str) -> NoReturn:
        if error.operation_name == "AssumeRole":
            raise role_refused(self._endpoint, error) from error
        code = error_code(error)
        status = error.response["ResponseMetadata"].get("HTTPStatusCode", 0)
        if code in _ALREADY_THERE or status == HTTPStatus.PRECONDITION_FAILED:
            raise ObjectAlreadyThere(key) from error
        if code in _GONE or (status == HTTPStatus.NOT_FOUND and code == "404"):
            raise ObjectMissing(key) from error
        if code == "NoSuchBucket":
            raise ConfigError(f"{self._where} does not exist: create it, or correct storage.bucket") from error
        if code in _NOT_ALLOWED or status == HTTPStatus.FORBIDDEN:
            raise ConfigError(
                f"{self._where}: not allowed to {what} ({code}): check the keys of {self._endpoint.remedy} and their "
                f"policy"
            ) from error
        if code.startswith("KMS.") or code in _NOT_ENCRYPTED:
            raise ConfigError(
                f"{self._where}: could not {what} ({code}): check server_side_encryption and sse_kms_key_id of "
                f"{self._endpoint.remedy}, and who may use the key"
            ) from error
        raise StoreUnavailable(f"{self._where}: could not {what}: {error}") from error


def client_of(endpoint: S3Endpoint) -> Any:
    """A client with a store's timeouts and tries."""
    return s3_client(
        endpoint,
        BotoConfig(
            connect_timeout=_CONNECT_TIMEOUT_SECONDS,
            read_timeout=_READ_TIMEOUT_SECONDS,
            retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
            max_pool_connections=UPLOAD_THREADS + 2,
            # What is read has checksums of its own. botocore would ask for S3's as well, a fifth of what a small object
            # costs, and without the CRT cannot hold the bytes against a CRC-32C.
            response_checksum_validation="when_required",
            # Bodies carry a CRC-32C that S3 checks: a SHA-256 of each, for the signature, would cost more than the
            # whole rest of an upload.
            s3={"payload_signing_enabled": False, "addressing_style": "path" if endpoint.endpoint_url else "auto"},
        ),
    )


def conflict_pauses() -> Iterator[float | None]:
    """Seconds to wait after each answer 409; None for the last try, whose 409 is raised."""
    for attempt in range(_CONFLICT_ATTEMPTS - 1):
        yield _CONFLICT_PAUSE_SECONDS * 2**attempt
    yield None


def error_code(error: ClientError) -> str:
    """S3's word for what is wrong, `NoSuchKey` for one; the status in digits for an answer without a body."""
    return str(error.response["Error"].get("Code", ""))


def body_of(content: memoryview) -> Any:
    """What botocore takes: bytes or a bytearray, the buffer itself where it is whole."""
    whole = content.obj
    return whole if isinstance(whole, bytes | bytearray) and len(whole) == len(content) else bytes(content)


def checksum_header(crc: int) -> str:
    """As S3 wants it: base64 of the big-endian CRC-32C. S3 refuses the body if it arrives as anything else."""
    return b64encode(crc.to_bytes(4, "big")).decode()
