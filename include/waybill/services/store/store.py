"""The archive in one S3 bucket: listings, reads, creates and removals of objects."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from waybill.base.errors import ObjectExists, ObjectMissing, StoreUnavailable
from waybill.config import names
from waybill.config.connections import Connection, S3Endpoint, find_connection
from waybill.config.names import BackupName, TopicPartition
from waybill.services.store.calls import BucketCalls, error_code, request_body
from waybill.services.store.fitness import ensure_fit, probe_and_remember
from waybill.services.store.objects import ChainId, Description, ListedObject, ObjectStream, PendingUpload, StoredObject
from waybill.services.store.probe import ProbeResult
from waybill.services.store.upload import PART_BYTES, PartThreads, Upload

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from waybill.config.models import Storage

logger = logging.getLogger(__name__)

COALESCE_BYTES = 1 << 20
"""Byte ranges closer together than this are merged into one read: S3 sends as much in the time that one call takes."""


class Store:
    """The archive in one bucket, below a prefix.

    The first call to S3 is expensive, since it creates botocore's client: share one store in a process. Several threads
    may use it. Close it, or use it as a context manager, to end its upload threads.

    Every method raises `StoreUnavailable` when S3 does not answer or answers with a server error, and `ConfigError`
    when the bucket does not exist or the credentials do not suffice.
    """

    def __init__(self, endpoint: S3Endpoint, bucket: str, prefix: str = "", *, part_bytes: int = PART_BYTES) -> None:
        self.bucket = bucket
        self.prefix = prefix
        self.part_bytes = part_bytes
        self._calls = BucketCalls(endpoint, bucket)
        self._threads = PartThreads(part_bytes)
        self.coalesce_bytes = COALESCE_BYTES
        """Callers of `read_range` merge byte ranges that are closer together than this."""

    @classmethod
    def of(
        cls, storage: Storage, find: Callable[[str], Connection] = find_connection, bucket: str | None = None
    ) -> Self:
        """Return the archive in the config, or another `bucket` of the same S3. `find` looks up connections.

        Before it creates an object if absent, it checks once a day that the store supports this
        (`waybill.services.store.fitness`), and raises `StoreUnfit` if not.
        """
        store = cls(S3Endpoint.of(find(storage.connection)), bucket or storage.bucket, storage.prefix)
        store._calls.ensure_fit = partial(ensure_fit, store._calls, store.prefix)
        return store

    def probe(self) -> ProbeResult:
        """Test whether the store has the abilities that Waybill relies on, and store a good result in the bucket.

        Does not raise `StoreUnfit`: the result names missing abilities.
        """
        return probe_and_remember(self._calls, self.prefix)

    @property
    def client(self) -> Any:
        """botocore's client, which the first use creates."""
        return self._calls.client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the upload threads and the connections."""
        self._threads.close()
        self._calls.close()

    # --- listings ---

    def list_chain(
        self, topic: str, generation: int, partition: int, start_after: int | None = None
    ) -> Iterator[StoredObject]:
        """Yield the objects of a chain in the order of their first offsets.

        With `start_after`, yield only objects whose first offset is greater.
        """
        prefix = names.chain_prefix(self.prefix, topic, generation, partition)
        after = None
        if start_after is not None:  # '~' sorts after '.', so this key comes after every extension
            after = names.offset_prefix(self.prefix, topic, generation, partition, start_after) + "~"
        for entry in self._list(prefix, after):
            try:
                name = BackupName.parse(entry["Key"])
            except ValueError:
                logger.warning("s3://%s/%s is not a backup object; ignored", self.bucket, entry["Key"])
                continue
            yield StoredObject(name, entry["Key"], int(entry["Size"]), entry["LastModified"])

    def topics(self) -> list[str]:
        """Return the topics that have backup objects, sorted. Other prefixes are logged and skipped."""
        prefix = names.archive_prefix(self.prefix)
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix, Delimiter="/")
        found: list[str] = []
        with self._calls.translate_errors("list topics"):
            for page in pages:
                found += [p["Prefix"].removeprefix(prefix).rstrip("/") for p in page.get("CommonPrefixes", [])]
        for name in (name for name in found if not names.is_topic(name)):
            logger.warning("s3://%s/%s%r is not a Kafka topic name; ignored", self.bucket, prefix, name)
        return sorted(filter(names.is_topic, found))

    def chains(self, topic: str) -> list[ChainId]:
        """Return the chains of a topic, sorted. It makes one call per chain, which lists from after the last chain."""
        prefix, found, after = names.backup_prefix(self.prefix, topic), [], None
        while (entry := next(self._list(prefix, after, page_size=1), None)) is not None:
            try:
                name = BackupName.parse(entry["Key"])
            except ValueError:
                after = entry["Key"]
                continue
            found.append(ChainId(TopicPartition(topic, name.partition), name.generation))
            after = names.chain_prefix(self.prefix, topic, name.generation, name.partition) + "~"
        return sorted(found)

    def keys(self, prefix: str) -> Iterator[str]:
        """Yield the keys that start with `prefix`, which includes the archive's prefix, in order."""
        return (str(entry["Key"]) for entry in self._list(prefix, None))

    def list_objects(self, prefix: str) -> Iterator[ListedObject]:
        """Yield the objects whose keys start with `prefix`, which includes the archive's prefix, in order."""
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
            with self._calls.translate_errors(f"list {prefix}"):
                page = next(iterator, None)
            if page is None:
                return
            yield from page.get("Contents", [])

    # --- reading ---

    def open(self, key: str) -> ObjectStream:
        """Return a stream of an object's bytes. Raises `ObjectMissing` if there is none."""
        with self._calls.translate_errors(f"read {key}", key):
            answer = self.client.get_object(Bucket=self.bucket, Key=key)
        size = int(self._calls.required(answer, "ContentLength", "GetObject"))
        return ObjectStream(answer["Body"], key, size, answer.get("Metadata"))

    def read(self, key: str) -> bytes:
        """Return an object's bytes. Raises `ObjectMissing` if there is none."""
        with self.open(key) as stream:
            return stream.read()

    def read_if_exists(self, key: str) -> bytes | None:
        """Return an object's bytes, or None if there is none. It makes one call."""
        try:
            return self.read(key)
        except ObjectMissing:
            return None

    def read_range(self, key: str, start: int, length_bytes: int) -> bytes:
        """Return `length_bytes` (at least 1) from byte `start` on, or fewer if the object ends before.

        Raises `ObjectMissing` if there is no object.
        """
        from botocore.exceptions import ClientError

        with self._calls.translate_errors(f"read {key}", key):
            try:
                wanted = f"bytes={start}-{start + length_bytes - 1}"
                answer = self.client.get_object(Bucket=self.bucket, Key=key, Range=wanted)
            except ClientError as error:
                if error_code(error) == "InvalidRange":
                    return b""
                raise
        size = int(self._calls.required(answer, "ContentLength", "GetObject"))
        with ObjectStream(answer["Body"], key, size) as stream:
            return stream.read()

    def metadata(self, key: str) -> dict[str, str]:
        """Return the user metadata of an object. Raises `ObjectMissing` if there is none."""
        return dict(self._calls.head(key)["Metadata"])

    def describe(self, key: str) -> Description:
        """Return metadata, ETag and size of an object. Raises `ObjectMissing` if there is none."""
        answer = self._calls.head(key)
        etag, size = (self._calls.required(answer, field, "HeadObject") for field in ("ETag", "ContentLength"))
        return Description(dict(answer["Metadata"]), etag, int(size))

    def exists(self, key: str) -> bool:
        """Return whether an object of that key exists now."""
        return self._calls.exists(key)

    # --- creating ---

    def create_if_absent(self, key: str, data: Buffer, metadata: Mapping[str, str] | None = None) -> None:
        """Create an object with one call, unless one of this key exists.

        Raises `ObjectExists` if one does: it may be a rival's, or from an earlier try of this call.
        """
        body = memoryview(data).cast("B")
        call = partial(
            self.client.put_object,
            Bucket=self.bucket,
            Key=key,
            Body=request_body(body),
            IfNoneMatch="*",
            Metadata=dict(metadata or {}),
            **self._calls.checksum_arguments(body),
            **self._calls.encryption,
        )
        self._calls.check_encryption(key, self._calls.create(f"create {key}", key, call))

    def create_or_read_existing(self, key: str, data: Buffer) -> bytes | None:
        """Create an object unless one exists. Return None if it was created, else the existing object's content."""
        try:
            self.create_if_absent(key, data)
        except ObjectExists:
            return self.read(key)
        return None

    def replace(self, key: str, data: Buffer, content_type: str | None = None) -> None:
        """Create an object, or replace the one of that key.

        Only for reports, on which no decision of Waybill depends.
        """
        body = memoryview(data).cast("B")
        described = {} if content_type is None else {"ContentType": content_type}
        with self._calls.translate_errors(f"write {key}", key):
            answer = self.client.put_object(
                Bucket=self.bucket,
                Key=key,
                Body=request_body(body),
                **self._calls.checksum_arguments(body),
                **described,
                **self._calls.encryption,
            )
        self._calls.check_encryption(key, answer)

    def upload_if_absent(self, key: str, metadata: Mapping[str, str] | None = None) -> Upload:
        """Return an upload that creates the object when it completes, unless one of this key exists by then."""
        return Upload(self._calls, self._threads, self.create_if_absent, key, dict(metadata or {}))

    def remove(self, key: str, *, etag: str | None = None) -> None:
        """Remove an object if it exists. With `etag`, only if it still has that ETag, if the store checks conditions.

        Use it for plans, index objects that no backup object names, and files of the `files` sink that the inventory
        does not list; never for backup objects.
        """
        condition = {} if etag is None else {"IfMatch": etag}
        try:
            with self._calls.translate_errors(f"remove {key}", key):
                self.client.delete_object(Bucket=self.bucket, Key=key, **condition)
        except (ObjectExists, ObjectMissing):
            logger.info("%s was replaced or removed by another task", key)

    def remove_if_exists(self, key: str) -> bool:
        """Remove an object and return whether it existed.

        It looks the object up first: a bucket with versions keeps a marker for each deletion, even of a missing object.
        """
        if not self.exists(key):
            return False
        self.remove(key)
        return True

    # --- pending uploads ---

    def pending_uploads(self) -> Iterator[PendingUpload]:
        """Yield the uploads of backup objects and index objects that are not completed, in the order of their keys."""
        for prefix in (names.archive_prefix(self.prefix), names.indexes_prefix(self.prefix)):
            pages = self.client.get_paginator("list_multipart_uploads").paginate(Bucket=self.bucket, Prefix=prefix)
            with self._calls.translate_errors(f"list the uploads below {prefix}"):
                found = [entry for page in pages for entry in page.get("Uploads", [])]
            for entry in found:
                chain = names.chain_of_key(entry["Key"])
                if chain is not None and entry["Key"].startswith(prefix):
                    yield PendingUpload(ChainId(*chain), entry["Key"], entry["UploadId"], entry["Initiated"])

    def abort_upload(self, upload: PendingUpload) -> bool:
        """Abort an upload and remove its parts. Return False if it was completed or aborted in the meantime."""
        from botocore.exceptions import ClientError

        try:
            with self._calls.translate_errors(f"abort an upload of {upload.key}", upload.key):
                self.client.abort_multipart_upload(Bucket=self.bucket, Key=upload.key, UploadId=upload.upload_id)
        except StoreUnavailable as error:
            cause = error.__cause__
            if isinstance(cause, ClientError) and error_code(cause) == "NoSuchUpload":
                return False
            raise
        return True
