"""One bucket's archive: listings, reading, creating."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

import crc32c
from botocore.exceptions import ClientError

from waybill import names
from waybill.connections import Connection, S3Endpoint, connection
from waybill.errors import ObjectAlreadyThere, ObjectMissing, StoreUnavailable
from waybill.names import BackupName, TopicPartition
from waybill.store.calls import Calls, body_of, checksum_header, conflict_pauses, error_code
from waybill.store.objects import Chain, Description, ListedObject, ObjectStream, PendingUpload, StoredObject
from waybill.store.upload import PART_BYTES, PartThreads, Upload

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from waybill.config import Storage

__all__ = ["GAP_BYTES", "Store"]

logger = logging.getLogger(__name__)

GAP_BYTES = 1 << 20
"""What S3 sends in the time that a call takes to be answered."""


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
        self._calls = Calls(endpoint, bucket)
        self.client = self._calls.client
        self._threads = PartThreads(part_bytes)
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
        self._threads.close()
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
                logger.warning("s3://%s/%s is not a backup object; ignored", self.bucket, entry["Key"])
                continue
            yield StoredObject(name, entry["Key"], int(entry["Size"]), entry["LastModified"])

    def topics(self) -> list[str]:
        """The topics that have backup objects, sorted. What lies there under no topic's name is logged and left out."""
        prefix = names.archive_prefix(self.prefix)
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix, Delimiter="/")
        found: list[str] = []
        with self._calls.mapped("list topics"):
            for page in pages:
                found += [p["Prefix"].removeprefix(prefix).rstrip("/") for p in page.get("CommonPrefixes", [])]
        for name in (name for name in found if not names.is_topic(name)):
            logger.warning("s3://%s/%s%r is no topic of Kafka's; ignored", self.bucket, prefix, name)
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
            with self._calls.mapped(f"list {prefix}"):
                page = next(iterator, None)
            if page is None:
                return
            yield from page.get("Contents", [])

    # --- reading ---

    def open(self, key: str) -> ObjectStream:
        """Stream an object. Raises `ObjectMissing` if there is none."""
        with self._calls.mapped(f"read {key}", key):
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
        with self._calls.mapped(f"read {key}", key):
            try:
                wanted = f"bytes={start}-{start + length_bytes - 1}"
                answer = self.client.get_object(Bucket=self.bucket, Key=key, Range=wanted)
            except ClientError as error:
                if error_code(error) == "InvalidRange":
                    return b""
                raise
        with ObjectStream(answer["Body"], key, int(answer["ContentLength"])) as stream:
            return stream.read()

    def metadata(self, key: str) -> dict[str, str]:
        """The user metadata of an object. Raises `ObjectMissing` if there is none."""
        return dict(self._calls.head(key)["Metadata"])

    def describe(self, key: str) -> Description:
        """What S3 says of an object beside its bytes. Raises `ObjectMissing` if there is none."""
        answer = self._calls.head(key)
        return Description(dict(answer["Metadata"]), answer["ETag"], int(answer["ContentLength"]))

    def exists(self, key: str) -> bool:
        """Whether there is an object of that name now."""
        return self._calls.exists(key)

    # --- creating ---

    def create_if_absent(self, key: str, data: Buffer, metadata: Mapping[str, str] | None = None) -> None:
        """Create an object by one call, unless one of this name exists.

        Raises `ObjectAlreadyThere` if one does (a rival's, or that of an earlier try of this very call).
        """
        body = memoryview(data).cast("B")
        for pause in conflict_pauses():
            with self._calls.mapped(f"create {key}", key, conflict=pause):
                answer = self.client.put_object(
                    Bucket=self.bucket,
                    Key=key,
                    Body=body_of(body),
                    IfNoneMatch="*",
                    Metadata=dict(metadata or {}),
                    ChecksumCRC32C=checksum_header(crc32c.crc32c(body)),
                    **self._calls.encryption,
                )
                self._calls.check_encryption(key, answer)
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
        return Upload(self._calls, self._threads, self.create_if_absent, key, dict(metadata or {}))

    def remove(self, key: str, *, etag: str | None = None) -> None:
        """Remove an object, if there is one. For plans, indexes that nothing names, and files of the `files` sink that
        nothing lists; never for backup objects. With `etag` only if it still has that one, where the store looks at it.
        """
        condition = {} if etag is None else {"IfMatch": etag}
        try:
            with self._calls.mapped(f"remove {key}", key):
                self.client.delete_object(Bucket=self.bucket, Key=key, **condition)
        except (ObjectAlreadyThere, ObjectMissing):
            logger.info("%s was replaced or removed by somebody else", key)

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
            with self._calls.mapped(f"list the uploads below {prefix}"):
                found = [entry for page in pages for entry in page.get("Uploads", [])]
            for entry in found:
                chain = names.chain_of(entry["Key"])
                if chain is not None and entry["Key"].startswith(prefix):
                    yield PendingUpload(Chain(*chain), entry["Key"], entry["UploadId"], entry["Initiated"])

    def abort_upload(self, upload: PendingUpload) -> bool:
        """Throw away what was uploaded. False if the upload was completed or aborted in the meantime."""
        try:
            with self._calls.mapped(f"abort an upload of {upload.key}", upload.key):
                self.client.abort_multipart_upload(Bucket=self.bucket, Key=upload.key, UploadId=upload.upload_id)
        except StoreUnavailable as error:
            cause = error.__cause__
            if isinstance(cause, ClientError) and error_code(cause) == "NoSuchUpload":
                return False
            raise
        return True
