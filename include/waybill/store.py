"""S3: create-if-absent, streamed uploads, listings.

What the protocol relies on: S3 decides, atomically, whether an object of a name exists (`If-None-Match: *` on
PutObject and on CompleteMultipartUpload), and a listing shows every object whose creation was acknowledged before it
began. Both hold on Amazon S3, and must hold on a store that stands in for it.

What it survives: an answer that never arrives. Calls are retried, so a create may be refused because its own first try
succeeded; `ObjectAlreadyThere` therefore says that *somebody* created the object, and the caller adopts what is there.
"""

from __future__ import annotations

import logging
import queue
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

import crc32c
from botocore.config import Config as BotoConfig
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

from waybill import names
from waybill.clients.s3 import role_refused, s3_client
from waybill.connections import Connection, S3Endpoint, connection
from waybill.errors import ConfigError, ObjectAlreadyThere, ObjectMissing, StoreUnavailable
from waybill.names import BackupName, TopicPartition

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from waybill.config import Storage

__all__ = [
    "GAP_BYTES",
    "PART_BYTES",
    "Chain",
    "Description",
    "ListedObject",
    "ObjectStream",
    "PendingUpload",
    "Store",
    "StoredObject",
    "Upload",
]

log = logging.getLogger(__name__)

PART_BYTES = 16 << 20
"""Size of a part of a multipart upload, and the largest object that is created by a single call."""

GAP_BYTES = 1 << 20
"""What S3 sends in the time that a call takes to be answered."""

UPLOAD_THREADS = 2
_STEP_BYTES = 256 << 10  # copied and checksummed in turn: what was copied is still in the processor's cache
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


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A backup object as a listing shows it."""

    name: BackupName
    key: str
    size_bytes: int
    modified: datetime


@dataclass(frozen=True, slots=True)
class ListedObject:
    """Any object as a listing shows it."""

    key: str
    size_bytes: int
    modified: datetime
    etag: str = ""
    """Without its quotes. The MD5 of an object that was created by one call and is not encrypted with a key of KMS."""


@dataclass(frozen=True, slots=True)
class Description:
    """What S3 says of an object beside its bytes."""

    metadata: dict[str, str]
    """User metadata."""
    etag: str
    size_bytes: int


@dataclass(frozen=True, slots=True, order=True)
class Chain:
    """Which chain: a topic-partition in a generation."""

    tp: TopicPartition
    generation: int


@dataclass(frozen=True, slots=True)
class PendingUpload:
    """A multipart upload that was begun and neither completed nor aborted: of a running lane, or of one that died."""

    chain: Chain
    key: str
    upload_id: str
    begun: datetime


class ObjectStream:
    """An object's bytes, read like a file. Use it as a context manager.

    Raises `StoreUnavailable` when the connection breaks or the object ends before its announced length.
    """

    def __init__(self, body: Any, key: str, size_bytes: int, metadata: Mapping[str, str] | None = None) -> None:
        self._body = body
        self.key = key
        self.size_bytes = size_bytes
        self.metadata = dict(metadata or {})
        """The object's user metadata."""

    def read(self, size: int = -1, /) -> bytes:
        """Up to `size` bytes, all that is left for -1, b'' at the end."""
        try:
            return bytes(self._body.read(None if size < 0 else size))
        except (BotoCoreError, OSError) as error:
            raise StoreUnavailable(f"{self.key}: reading was cut off: {error}") from error

    def close(self) -> None:
        self._body.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Store:
    """One bucket's archive below a prefix.

    Cheap to keep, not to make: share one in a process. Safe to use from several threads. Close it, or use it as a
    context manager, to end its upload threads.

    Every method raises `StoreUnavailable` when S3 does not answer or answers with a fault of its own, and
    `ConfigError` when the bucket does not exist or the credentials do not suffice.
    """

    def __init__(self, endpoint: S3Endpoint, bucket: str, prefix: str = "", *, part_bytes: int = PART_BYTES) -> None:
        self.bucket = bucket
        self.prefix = prefix
        self.part_bytes = part_bytes
        self.client = _client(endpoint)
        self.encryption: dict[str, Any] = endpoint.encryption.arguments() if endpoint.encryption else {}
        """Arguments for every call that creates an object."""
        self._endpoint = endpoint
        self._where = f"bucket {bucket!r}" + (f" at {endpoint.endpoint_url}" if endpoint.endpoint_url else "")
        self._pool = ThreadPoolExecutor(UPLOAD_THREADS, thread_name_prefix="waybill-upload")
        self._buffers: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
        self.gap_bytes = GAP_BYTES
        """How many bytes are rather read for nothing than that another `read_range` begins behind them."""

    @classmethod
    def of(cls, storage: Storage, find: Callable[[str], Connection] = connection, bucket: str | None = None) -> Self:
        """The archive that the config names, or another bucket of the same S3; `find` looks a connection up by name."""
        return cls(S3Endpoint.of(find(storage.connection)), bucket or storage.bucket, storage.prefix)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the upload threads and the connections."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self.client.close()

    # --- listings ---

    def list_chain(
        self, topic: str, generation: int, partition: int, start_after: int | None = None
    ) -> Iterator[StoredObject]:
        """The objects of a chain in the order of their first offsets.

        With `start_after` only those whose first offset is greater.
        """
        prefix = names.chain_prefix(self.prefix, topic, generation, partition)
        after = None
        if start_after is not None:  # behind every extension: '~' comes after '.'
            after = names.offset_prefix(self.prefix, topic, generation, partition, start_after) + "~"
        for entry in self._list(prefix, after):
            try:
                name = BackupName.parse(entry["Key"])
            except ValueError:
                log.warning("s3://%s/%s is not a backup object; ignored", self.bucket, entry["Key"])
                continue
            yield StoredObject(name, entry["Key"], int(entry["Size"]), entry["LastModified"])

    def topics(self) -> list[str]:
        """The topics that have backup objects, sorted. What lies there under no topic's name is logged and left out."""
        prefix = names.archive_prefix(self.prefix)
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix, Delimiter="/")
        found: list[str] = []
        with self._mapped("list topics"):
            for page in pages:
                found += [p["Prefix"].removeprefix(prefix).rstrip("/") for p in page.get("CommonPrefixes", [])]
        for name in (name for name in found if not names.is_topic(name)):
            log.warning("s3://%s/%s%r is no topic of Kafka's; ignored", self.bucket, prefix, name)
        return sorted(filter(names.is_topic, found))

    def chains(self, topic: str) -> list[Chain]:
        """The chains of a topic, sorted. One call a chain: each listing goes on behind the chain that was found."""
        prefix, found, after = names.backup_prefix(self.prefix, topic), [], None
        while (entry := next(self._list(prefix, after, page_size=1), None)) is not None:
            try:
                name = BackupName.parse(entry["Key"])
            except ValueError:
                after = entry["Key"]
                continue
            found.append(Chain(TopicPartition(topic, name.partition), name.generation))
            after = names.chain_prefix(self.prefix, topic, name.generation, name.partition) + "~"
        return sorted(found)

    def keys(self, prefix: str) -> Iterator[str]:
        """The keys that start with `prefix` (a whole key's start, the archive's prefix included), in order."""
        return (str(entry["Key"]) for entry in self._list(prefix, None))

    def list_objects(self, prefix: str) -> Iterator[ListedObject]:
        """The objects whose keys start with `prefix` (a whole key's start, the archive's prefix included), in order."""
        for entry in self._list(prefix, None):
            etag = str(entry.get("ETag", "")).strip('"')
            yield ListedObject(str(entry["Key"]), int(entry["Size"]), entry["LastModified"], etag)

    def _list(self, prefix: str, after: str | None, page_size: int = 1000) -> Iterator[dict[str, Any]]:
        start = {} if after is None else {"StartAfter": after}
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=prefix, PaginationConfig={"PageSize": page_size}, **start
        )
        iterator = iter(pages)
        while True:
            with self._mapped(f"list {prefix}"):
                page = next(iterator, None)
            if page is None:
                return
            yield from page.get("Contents", [])

    # --- reading ---

    def open(self, key: str) -> ObjectStream:
        """Stream an object. Raises `ObjectMissing` if there is none."""
        with self._mapped(f"read {key}", key):
            answer = self.client.get_object(Bucket=self.bucket, Key=key)
        return ObjectStream(answer["Body"], key, int(answer["ContentLength"]), answer.get("Metadata"))

    def read(self, key: str) -> bytes:
        """A whole object. Raises `ObjectMissing` if there is none."""
        with self.open(key) as stream:
            return stream.read()

    def read_if_there(self, key: str) -> bytes | None:
        """A whole object; None if there is none. One call."""
        try:
            return self.read(key)
        except ObjectMissing:
            return None

    def read_range(self, key: str, start: int, length_bytes: int) -> bytes:
        """`length_bytes` (at least 1) from byte `start` on; less, or none, only where the object ends before.

        Raises `ObjectMissing` if there is no object.
        """
        with self._mapped(f"read {key}", key):
            try:
                wanted = f"bytes={start}-{start + length_bytes - 1}"
                answer = self.client.get_object(Bucket=self.bucket, Key=key, Range=wanted)
            except ClientError as error:
                if error.response["Error"].get("Code") == "InvalidRange":
                    return b""
                raise
        with ObjectStream(answer["Body"], key, int(answer["ContentLength"])) as stream:
            return stream.read()

    def metadata(self, key: str) -> dict[str, str]:
        """The user metadata of an object. Raises `ObjectMissing` if there is none."""
        with self._mapped(f"look up {key}", key):
            return dict(self.client.head_object(Bucket=self.bucket, Key=key)["Metadata"])

    def describe(self, key: str) -> Description:
        """What S3 says of an object beside its bytes. Raises `ObjectMissing` if there is none."""
        with self._mapped(f"look up {key}", key):
            answer = self.client.head_object(Bucket=self.bucket, Key=key)
        return Description(dict(answer["Metadata"]), answer["ETag"], int(answer["ContentLength"]))

    def exists(self, key: str) -> bool:
        """Whether there is an object of that name now."""
        try:
            self.metadata(key)
        except ObjectMissing:
            return False
        return True

    # --- creating ---

    def create_if_absent(self, key: str, data: Buffer, metadata: Mapping[str, str] | None = None) -> None:
        """Create an object by one call, unless one of this name exists.

        Raises `ObjectAlreadyThere` if one does (a rival's, or that of an earlier try of this very call).
        """
        body = memoryview(data).cast("B")
        for pause in _conflict_pauses():
            with self._mapped(f"create {key}", key, conflict=pause):
                answer = self.client.put_object(
                    Bucket=self.bucket,
                    Key=key,
                    Body=_body(body),
                    IfNoneMatch="*",
                    Metadata=dict(metadata or {}),
                    ChecksumCRC32C=_checksum(crc32c.crc32c(body)),
                    **self.encryption,
                )
                self.check_encryption(key, answer)
                return

    def create_unless_there(self, key: str, data: Buffer) -> bytes | None:
        """`create_if_absent`, and what is there if it was not: None if it was created, else the other's content."""
        try:
            self.create_if_absent(key, data)
        except ObjectAlreadyThere:
            return self.read(key)
        return None

    def upload_if_absent(self, key: str, metadata: Mapping[str, str] | None = None) -> Upload:
        """Begin an object that comes into being when the upload completes, unless one of this name exists by then."""
        return Upload(self, key, dict(metadata or {}))

    def check_encryption(self, key: str, answer: Mapping[str, Any]) -> None:
        """Raise `ConfigError` unless S3's answer to a call that creates says that it encrypts as it was told to."""
        wanted = self.encryption.get("ServerSideEncryption")
        if wanted is not None and answer.get("ServerSideEncryption") != wanted:
            raise ConfigError(
                f"{self._where}: {key}: the store passes over server_side_encryption {wanted!r} of "
                f"{self._endpoint.remedy}. Take it out, and encrypt the bucket by other means"
            )

    def remove(self, key: str, *, etag: str | None = None) -> None:
        """Remove an object, if there is one. For plans, indexes that nothing names, and files of the `files` sink that
        nothing lists; never for backup objects. With `etag` only if it still has that one, where the store looks at it.
        """
        condition = {} if etag is None else {"IfMatch": etag}
        try:
            with self._mapped(f"remove {key}", key):
                self.client.delete_object(Bucket=self.bucket, Key=key, **condition)
        except (ObjectAlreadyThere, ObjectMissing):
            log.info("%s was replaced or removed by somebody else", key)

    def remove_if_there(self, key: str) -> bool:
        """Remove an object that mostly is not there: looked for first, or a bucket with versions kept each deletion."""
        if not self.exists(key):
            return False
        self.remove(key)
        return True

    # --- uploads that nobody completed ---

    def pending_uploads(self) -> Iterator[PendingUpload]:
        """The uploads of backup objects and their indexes that are not completed, in the order of their keys."""
        for prefix in (names.archive_prefix(self.prefix), names.indexes_prefix(self.prefix)):
            pages = self.client.get_paginator("list_multipart_uploads").paginate(Bucket=self.bucket, Prefix=prefix)
            with self._mapped(f"list the uploads below {prefix}"):
                found = [entry for page in pages for entry in page.get("Uploads", [])]
            for entry in found:
                chain = names.chain_of(entry["Key"])
                if chain is not None and entry["Key"].startswith(prefix):
                    yield PendingUpload(Chain(*chain), entry["Key"], entry["UploadId"], entry["Initiated"])

    def abort_upload(self, upload: PendingUpload) -> bool:
        """Throw away what was uploaded. False if the upload was completed or aborted in the meantime."""
        try:
            with self._mapped(f"abort an upload of {upload.key}", upload.key):
                self.client.abort_multipart_upload(Bucket=self.bucket, Key=upload.key, UploadId=upload.upload_id)
        except StoreUnavailable as error:
            cause = error.__cause__
            if isinstance(cause, ClientError) and cause.response["Error"].get("Code") == "NoSuchUpload":
                return False
            raise
        return True

    # --- errors ---

    @contextmanager
    def _mapped(self, what: str, key: str = "", conflict: float | None = None) -> Iterator[None]:
        """Turn botocore's errors into ours. `conflict`: seconds to wait and pass over a rival's call in flight."""
        try:
            yield
        except ClientError as error:
            if error.response["Error"].get("Code") in _IN_FLIGHT and conflict is not None:
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
        code = error.response["Error"].get("Code", "")
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


class Upload:
    """An object in the making. What was written exists nowhere until `complete` returns.

    Bytes are gathered into parts, and parts are sent by the store's threads while the caller goes on writing: at most
    three parts are in memory. An object of less than a part goes by a single call.

    Not safe to share between threads. End it with `complete` or `abort`; as a context manager it aborts by itself.
    """

    def __init__(self, store: Store, key: str, metadata: dict[str, str]) -> None:
        self.key = key
        self.size_bytes = 0
        self._store = store
        self._metadata = metadata
        self._target = {"Bucket": store.bucket, "Key": key}
        self._upload_id: str | None = None
        self._parts: list[Future[dict[str, Any]]] = []
        self._buffer: bytearray | None = None
        self._filled = 0
        self._crc = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.abort()

    def write(self, data: Buffer) -> None:
        """Append bytes; they are copied. Blocks while every part buffer is being sent.

        Raises `StoreUnavailable` if a part could not be sent.
        """
        source = memoryview(data).cast("B")
        self.size_bytes += len(source)
        while source:
            if self._buffer is None:
                self._buffer = self._take_buffer()
            taken = min(len(source), self._store.part_bytes - self._filled, _STEP_BYTES)
            piece = source[:taken]
            with memoryview(self._buffer) as buffer:  # a bytearray's own slices would be copied twice
                buffer[self._filled : self._filled + taken] = piece
            self._crc = crc32c.crc32c(piece, self._crc)
            self._filled += taken
            source = source[taken:]
            if self._filled == self._store.part_bytes:
                self._send_part()

    def complete(self) -> None:
        """Create the object, unless one of this name exists: the protocol's commit point (step 6).

        Raises `ObjectAlreadyThere` if one does; the parts of this upload are then aborted. Raises `StoreUnavailable`
        when the outcome is unknown or the upload is lost: begin again, the outcome is the same.
        """
        try:
            if self._upload_id is None:
                self._create_whole()
                return
            if self._filled:
                self._send_part()
            parts = [part.result() for part in self._parts]
            self._complete_parts([{**p, "PartNumber": n} for n, p in enumerate(parts, 1)])
            self._upload_id = None
        finally:
            self.abort()

    def abort(self) -> None:
        """Forget what was written. Does nothing after `complete`.

        Parts that cannot be aborted now stay behind, invisible and paid for, until a lifecycle rule removes them.
        """
        for part in self._parts:
            part.cancel()
        for part in self._parts:
            if not part.cancelled():
                part.exception()
        self._parts.clear()
        self._release_buffer()
        if self._upload_id is not None:
            upload_id, self._upload_id = self._upload_id, None
            try:
                self._store.client.abort_multipart_upload(**self._target, UploadId=upload_id)
            except (ClientError, BotoCoreError, OSError) as error:
                log.warning("%s: upload %s could not be aborted: %s", self.key, upload_id, error)

    def _create_whole(self) -> None:
        content = memoryview(self._buffer or b"")[: self._filled]
        try:
            self._store.create_if_absent(self.key, content, self._metadata)
        finally:
            content.release()

    def _complete_parts(self, parts: list[dict[str, Any]]) -> None:
        store = self._store
        for pause in _conflict_pauses():
            try:
                with store._mapped(f"complete {self.key}", self.key, conflict=pause):
                    store.client.complete_multipart_upload(
                        **self._target, UploadId=self._upload_id, IfNoneMatch="*", MultipartUpload={"Parts": parts}
                    )
                    return
            except StoreUnavailable:
                # Our own first try may have succeeded with its answer lost: then the upload's id is gone.
                if store.exists(self.key):
                    raise ObjectAlreadyThere(self.key) from None
                raise

    def _take_buffer(self) -> bytearray:
        """A buffer for the next part, once fewer than `UPLOAD_THREADS` are being sent."""
        while len(sending := [part for part in self._parts if not part.done()]) >= UPLOAD_THREADS:
            wait(sending, return_when=FIRST_COMPLETED)
        for part in self._parts:
            if part.done():
                part.result()  # a part that failed is reason to stop filling the next
        try:
            return self._store._buffers.get_nowait()
        except queue.Empty:
            return bytearray(self._store.part_bytes)

    def _send_part(self) -> None:
        if self._upload_id is None:
            with self._store._mapped(f"begin {self.key}", self.key):
                answer = self._store.client.create_multipart_upload(
                    **self._target,
                    Metadata=self._metadata,
                    ChecksumAlgorithm="CRC32C",
                    ChecksumType="COMPOSITE",
                    **self._store.encryption,
                )
            self._upload_id = answer["UploadId"]
            self._store.check_encryption(self.key, answer)
        assert self._buffer is not None
        buffer, size, crc, number = self._buffer, self._filled, self._crc, len(self._parts) + 1
        self._buffer, self._filled, self._crc = None, 0, 0
        part = self._store._pool.submit(self._send, self._upload_id, number, buffer, size, crc)
        part.add_done_callback(lambda _: self._store._buffers.put(buffer))
        self._parts.append(part)

    def _send(self, upload_id: str, number: int, buffer: bytearray, size: int, crc: int) -> dict[str, Any]:
        checksum = _checksum(crc)
        with self._store._mapped(f"send part {number} of {self.key}", self.key), memoryview(buffer)[:size] as content:
            answer = self._store.client.upload_part(
                **self._target,
                UploadId=upload_id,
                PartNumber=number,
                Body=_body(content),
                ChecksumCRC32C=checksum,
            )
        return {"ETag": answer["ETag"], "ChecksumCRC32C": checksum}

    def _release_buffer(self) -> None:
        if self._buffer is not None:
            self._store._buffers.put(self._buffer)
            self._buffer, self._filled, self._crc = None, 0, 0


def _conflict_pauses() -> Iterator[float | None]:
    """Seconds to wait after each answer 409; None for the last try, whose 409 is raised."""
    for attempt in range(_CONFLICT_ATTEMPTS - 1):
        yield _CONFLICT_PAUSE_SECONDS * 2**attempt
    yield None


def _body(content: memoryview) -> Any:
    """What botocore takes: bytes or a bytearray, the buffer itself where it is whole."""
    whole = content.obj
    return whole if isinstance(whole, bytes | bytearray) and len(whole) == len(content) else bytes(content)


def _checksum(crc: int) -> str:
    """As S3 wants it: base64 of the big-endian CRC-32C. S3 refuses the body if it arrives as anything else."""
    return b64encode(crc.to_bytes(4, "big")).decode()


def _client(endpoint: S3Endpoint) -> Any:
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
