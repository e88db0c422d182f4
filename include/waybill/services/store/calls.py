"""botocore's client of one bucket: timeouts, retries, encryption, and its errors as Waybill's.

The client is created at the first call, and botocore is imported then: most lanes find nothing new and make no call.
"""

from __future__ import annotations

import hashlib
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import crc32c

from waybill.base.errors import ConfigError, ObjectExists, ObjectMissing, StoreUnavailable, StoreUnfit
from waybill.config.connections import Checksums, S3Endpoint
from waybill.services.clients.s3 import role_error, s3_client

if TYPE_CHECKING:
    from botocore.exceptions import ClientError

UPLOAD_THREADS = 2
_MOST_CONNECTIONS = 128
"""More than all threads that share a store: the ledger and plans list with 8, a Spark driver works on up to 64 streams
at a time. A connection is opened only when a thread needs it, so a large pool costs nothing; from a small one, urllib3
drops connections, and logs a warning for each."""
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
        "XAdminUserNotFound",  # versitygw's code for InvalidAccessKeyId
    }
)
_NOT_ENCRYPTED = frozenset({"InvalidEncryptionAlgorithmError", "NotImplemented"})
_NOT_KNOWN = frozenset(
    {"InvalidArgument", "InvalidRequest", "InvalidHeader", "NotImplemented", "UnsupportedArgument", "MissingContentMD5"}
)
_EXISTS = frozenset({"PreconditionFailed"})
_IN_FLIGHT = frozenset({"ConditionalRequestConflict"})
_MISSING = frozenset({"NoSuchKey", "NotFound"})

T = TypeVar("T")


class BucketCalls:
    """botocore's client of one bucket, with its errors translated. Several threads may share it."""

    def __init__(self, endpoint: S3Endpoint, bucket: str) -> None:
        self.bucket = bucket
        self.encryption: dict[str, Any] = endpoint.encryption.arguments() if endpoint.encryption else {}
        """Arguments for every call that creates an object."""
        self.ensure_fit: Callable[[], None] = lambda: None
        """Called before an object is created if absent: raises `StoreUnfit` if the store cannot do that."""
        self._endpoint = endpoint
        self.where = f"bucket {bucket!r}" + (f" at {endpoint.endpoint_url}" if endpoint.endpoint_url else "")
        self._client: Any = None
        self._creating = threading.Lock()
        if endpoint.profile is not None:
            self.client  # noqa: B018 (a profile that does not exist is an error at once, not at the first call)

    @property
    def client(self) -> Any:
        """botocore's client, which the first use creates."""
        if self._client is None:
            with self._creating:
                if self._client is None:
                    self._client = store_client(self._endpoint)
        return self._client

    def close(self) -> None:
        """Close the connections, if there are any."""
        if self._client is not None:
            self._client.close()

    def head(self, key: str) -> Mapping[str, Any]:
        """Return S3's answer to HeadObject. Raises `ObjectMissing` if there is no such object."""
        with self.translate_errors(f"look up {key}", key):
            answer: Mapping[str, Any] = self.client.head_object(Bucket=self.bucket, Key=key)
            return answer

    def exists(self, key: str) -> bool:
        """Return whether an object of that key exists now."""
        try:
            self.head(key)
        except ObjectMissing:
            return False
        return True

    def create(self, what: str, key: str, call: Callable[[], T]) -> T:
        """Return the result of `call`, which creates the object `key` if it is absent. `what` names it in errors.

        S3 answers 409 while a rival's create of the same key is in flight, which does not mean that the rival wins. So
        a 409 repeats the call with exponential backoff, and the last one raises `StoreUnavailable`. The loop is not
        tenacity's: its import would add 35 ms of CPU to the start of every lane.
        """
        self.ensure_fit()
        from botocore.exceptions import ClientError

        for attempt in range(_CONFLICT_ATTEMPTS - 1):
            with self.translate_errors(what, key):
                try:
                    return call()
                except ClientError as error:
                    if error_code(error) not in _IN_FLIGHT:
                        raise
            time.sleep(_CONFLICT_PAUSE_SECONDS * 2**attempt)
        with self.translate_errors(what, key):
            return call()

    def check_encryption(self, key: str, answer: Mapping[str, Any]) -> None:
        """Raise `ConfigError` unless S3's answer to a create confirms the encryption that was requested."""
        wanted = self.encryption.get("ServerSideEncryption")
        if wanted is not None and answer.get("ServerSideEncryption") != wanted:
            raise ConfigError(
                f"{self.where}: {key}: the store ignores server_side_encryption {wanted!r} of "
                f"{self._endpoint.remedy}. Remove that option, and encrypt the bucket by other means"
            )

    @property
    def checksums(self) -> Checksums:
        """The kind of checksum that request bodies carry."""
        return self._endpoint.checksums

    @property
    def identity(self) -> tuple[str, str]:
        """A key for the store and the bucket, independent of the credentials."""
        return self._endpoint.endpoint_url or "", self.bucket

    def checksum_arguments(self, body: memoryview, crc: int | None = None) -> dict[str, str]:
        """Return the argument of a call with the checksum of its body. `crc`: its CRC-32C, if it is known."""
        if self._endpoint.checksums is Checksums.NONE:
            return {}
        if self._endpoint.checksums is Checksums.MD5:
            return {"ContentMD5": b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()}
        return {"ChecksumCRC32C": checksum_header(crc32c.crc32c(body) if crc is None else crc)}

    @property
    def upload_arguments(self) -> dict[str, str]:
        """Arguments of `CreateMultipartUpload`: with which checksums its parts come."""
        known = self._endpoint.checksums is Checksums.CRC32C
        return {"ChecksumAlgorithm": "CRC32C", "ChecksumType": "COMPOSITE"} if known else {}

    def part(self, answer: Mapping[str, Any], checksum: Mapping[str, str]) -> dict[str, Any]:
        """Return a part for `CompleteMultipartUpload`, from S3's answer and the arguments with its checksum."""
        etag = self.required(answer, "ETag", "UploadPart")
        return {"ETag": etag} | ({} if "ContentMD5" in checksum else dict(checksum))

    def required(self, answer: Mapping[str, Any], field: str, call: str) -> Any:
        """Return a field of an answer. Raises `StoreUnfit` if the store's answer to `call` lacks it."""
        try:
            return answer[field]
        except KeyError:
            raise StoreUnfit(
                self.where, [f"it answers {call} without {field}"], "Use a store with S3's complete answers"
            ) from None

    @contextmanager
    def translate_errors(self, what: str, key: str = "") -> Iterator[None]:
        """Raise Waybill's errors instead of botocore's. `what` completes "could not …" in messages."""
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

        try:
            yield
        except ClientError as error:
            self._raise(error, what, key)
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise ConfigError(
                f"{self.where}: could not {what}: {error}. Set them in {self._endpoint.remedy}"
            ) from error
        except (BotoCoreError, OSError) as error:
            raise StoreUnavailable(f"{self.where}: could not {what}: {error}") from error

    def _raise(self, error: ClientError, what: str, key: str) -> NoReturn:
        if error.operation_name == "AssumeRole":
            raise role_error(self._endpoint, error) from error
        code = error_code(error)
        status = error.response["ResponseMetadata"].get("HTTPStatusCode", 0)
        if code in _EXISTS or status == HTTPStatus.PRECONDITION_FAILED:
            raise ObjectExists(key) from error
        if code in _MISSING or (status == HTTPStatus.NOT_FOUND and code == "404"):
            raise ObjectMissing(key) from error
        if code == "NoSuchBucket":
            raise ConfigError(f"{self.where} does not exist: create it, or correct storage.bucket") from error
        if code in _NOT_ALLOWED or status == HTTPStatus.FORBIDDEN:
            raise ConfigError(
                f"{self.where}: not allowed to {what} ({code}): check the keys of {self._endpoint.remedy} and their "
                f"policy"
            ) from error
        if self.is_about_checksums(error):
            raise StoreUnfit(
                self.where, [f"it could not {what}, since it refuses the checksum ({error})"], self.checksum_remedy
            ) from error
        if code.startswith("KMS.") or (self.encryption and code in _NOT_ENCRYPTED):
            raise ConfigError(
                f"{self.where}: could not {what} ({code}): check server_side_encryption and sse_kms_key_id of "
                f"{self._endpoint.remedy}, and who may use the key"
            ) from error
        if status == HTTPStatus.NOT_IMPLEMENTED:
            raise StoreUnfit(
                self.where, [f"it could not {what} ({error})"], f"Use another store. {self.checksum_remedy}"
            ) from error
        raise StoreUnavailable(f"{self.where}: could not {what}: {error}") from error

    def is_about_checksums(self, error: ClientError) -> bool:
        """Return whether the store refuses a request because it does not know the kind of its checksum.

        A checksum that differs from the body's is another answer (`BadDigest`): a retry can help.
        """
        text = f"{error_code(error)} {error.response['Error'].get('Message', '')}".lower()
        status = error.response["ResponseMetadata"].get("HTTPStatusCode", 0)
        return (
            status in (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_IMPLEMENTED)
            and self.checksums is Checksums.CRC32C
            and error_code(error) in _NOT_KNOWN
            and any(word in text for word in ("checksum", "crc32", "trailer"))
        )

    @property
    def checksum_remedy(self) -> str:
        """The remedy for a store that does not know the checksums of requests."""
        known = f'"checksums" in the extra of {self._endpoint.remedy}'
        if self.checksums is Checksums.CRC32C:
            return f'If it does not know CRC-32C, set {known} to "md5"; if it compares no checksum at all, to "none"'
        if self.checksums is Checksums.MD5:
            return f'If it does not compare Content-MD5, set {known} to "none"'
        return f"No checksums are sent: {known}"


def store_client(endpoint: S3Endpoint) -> Any:
    """Return botocore's S3 client with the timeouts and retries of a store."""
    from botocore.config import Config as BotoConfig

    return s3_client(
        endpoint,
        BotoConfig(
            connect_timeout=_CONNECT_TIMEOUT_SECONDS,
            read_timeout=_READ_TIMEOUT_SECONDS,
            retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
            max_pool_connections=_MOST_CONNECTIONS,
            # All content that is read has its own checksums. botocore would also request S3's, which costs a fifth of
            # the read of a small object, and without the CRT it cannot compare a CRC-32C.
            response_checksum_validation="when_required",
            # Bodies carry a CRC-32C that S3 checks. A SHA-256 of each body for the signature would cost more CPU than
            # the rest of the upload.
            s3={"payload_signing_enabled": False, "addressing_style": "path" if endpoint.endpoint_url else "auto"},
        ),
    )


def error_code(error: ClientError) -> str:
    """Return S3's error code, such as `NoSuchKey`; the HTTP status in digits for an answer without a body."""
    return str(error.response["Error"].get("Code", ""))


def request_body(content: memoryview) -> Any:
    """Return `content` as botocore accepts it: bytes or a bytearray, without a copy if it covers its whole buffer."""
    whole = content.obj
    return whole if isinstance(whole, bytes | bytearray) and len(whole) == len(content) else bytes(content)


def checksum_header(crc: int) -> str:
    """Return a CRC-32C as S3 expects it: base64, big-endian. S3 refuses a body with another checksum."""
    return b64encode(crc.to_bytes(4, "big")).decode()
