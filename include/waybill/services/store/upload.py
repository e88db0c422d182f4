"""Streamed uploads: bytes are collected into parts, and a store's threads send the parts."""

from __future__ import annotations

import contextvars
import logging
import queue
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import crc32c

from waybill.base.errors import ObjectExists, StoreUnavailable
from waybill.services.store.calls import UPLOAD_THREADS, BucketCalls, request_body

if TYPE_CHECKING:
    from typing_extensions import Buffer

logger = logging.getLogger(__name__)

PART_BYTES = 16 << 20
"""Size of a part of a multipart upload, and the largest object that a single call creates."""

_STEP_BYTES = 256 << 10  # copy and checksum in small steps, while the copied bytes are in the processor's cache

CreateWhole = Callable[[str, memoryview, dict[str, str]], None]
"""Creates an object with a key, content and user metadata in one call, or raises `ObjectExists`."""


class PartThreads:
    """The threads that send parts, and the buffers that collect them. All uploads of a store share them."""

    def __init__(self, part_bytes: int) -> None:
        self.part_bytes = part_bytes
        self.buffers: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
        """Free buffers, to be reused."""
        self.pool = ThreadPoolExecutor(UPLOAD_THREADS, thread_name_prefix="waybill-upload")

    def take_buffer(self) -> bytearray:
        """Return a free buffer of a part's size."""
        try:
            return self.buffers.get_nowait()
        except queue.Empty:
            return bytearray(self.part_bytes)

    def close(self) -> None:
        """End the threads. Parts that are being sent are awaited; parts that wait are dropped."""
        self.pool.shutdown(wait=True, cancel_futures=True)


class Upload:
    """An object that is being written. It does not exist until `complete` returns.

    Bytes are collected into parts, and the store's threads send parts while the caller continues to write: at most
    three parts are in memory. An object smaller than a part is created with a single call.

    Only one thread may use it. End it with `complete` or `abort`; as a context manager it aborts by itself.
    """

    def __init__(
        self, calls: BucketCalls, threads: PartThreads, create_whole: CreateWhole, key: str, metadata: dict[str, str]
    ) -> None:
        self.key = key
        self.size_bytes = 0
        self._calls = calls
        self._threads = threads
        self._create_whole = create_whole
        self._metadata = metadata
        self._target = {"Bucket": calls.bucket, "Key": key}
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
        """Append a copy of the bytes. Blocks while every part buffer is being sent.

        Raises `StoreUnavailable` if a part could not be sent.
        """
        source = memoryview(data).cast("B")
        self.size_bytes += len(source)
        while source:
            if self._buffer is None:
                self._buffer = self._take_buffer()
            taken = min(len(source), self._threads.part_bytes - self._filled, _STEP_BYTES)
            piece = source[:taken]
            with memoryview(self._buffer) as buffer:  # a slice of a bytearray itself would copy twice
                buffer[self._filled : self._filled + taken] = piece
            self._crc = crc32c.crc32c(piece, self._crc)
            self._filled += taken
            source = source[taken:]
            if self._filled == self._threads.part_bytes:
                self._send_part()

    def complete(self) -> None:
        """Create the object, unless one of this key exists. This is the protocol's commit point (step 6).

        Raises `ObjectExists` if one does; the parts of this upload are then aborted. Raises `StoreUnavailable` when
        the outcome is unknown or the upload is lost: start a new upload, which has the same outcome.
        """
        try:
            if self._upload_id is None:
                self._create_by_one_call()
                return
            if self._filled:
                self._send_part()
            parts = [part.result() for part in self._parts]
            self._complete_parts([{**p, "PartNumber": n} for n, p in enumerate(parts, 1)])
            self._upload_id = None
        finally:
            self.abort()

    def abort(self) -> None:
        """Discard the written bytes. Does nothing after `complete`.

        If S3 cannot abort the upload now, its parts remain, invisible but charged, until ingest's hourly check for
        orphaned uploads or a lifecycle rule removes them.
        """
        for part in self._parts:
            part.cancel()
        for part in self._parts:
            if not part.cancelled():
                part.exception()
        self._parts.clear()
        self._release_buffer()
        if self._upload_id is not None:
            from botocore.exceptions import BotoCoreError, ClientError

            upload_id, self._upload_id = self._upload_id, None
            try:
                self._calls.client.abort_multipart_upload(**self._target, UploadId=upload_id)
            except (ClientError, BotoCoreError, OSError) as error:
                logger.warning("%s: upload %s could not be aborted: %s", self.key, upload_id, error)

    def _create_by_one_call(self) -> None:
        content = memoryview(self._buffer or b"")[: self._filled]
        try:
            self._create_whole(self.key, content, self._metadata)
        finally:
            content.release()

    def _complete_parts(self, parts: list[dict[str, Any]]) -> None:
        call = partial(
            self._calls.client.complete_multipart_upload,
            **self._target,
            UploadId=self._upload_id,
            IfNoneMatch="*",
            MultipartUpload={"Parts": parts},
        )
        try:
            self._calls.create(f"complete {self.key}", self.key, call)
        except StoreUnavailable:
            # The first try may have succeeded although its answer was lost: then the upload id no longer exists.
            if self._calls.exists(self.key):
                raise ObjectExists(self.key) from None
            raise

    def _take_buffer(self) -> bytearray:
        """Return a buffer for the next part, as soon as fewer than `UPLOAD_THREADS` parts are being sent."""
        while len(sending := [part for part in self._parts if not part.done()]) >= UPLOAD_THREADS:
            wait(sending, return_when=FIRST_COMPLETED)
        for part in self._parts:
            if part.done():
                part.result()  # raises if the part failed: then the next part is not needed
        return self._threads.take_buffer()

    def _send_part(self) -> None:
        if self._upload_id is None:
            self._calls.ensure_fit()  # fail before gigabytes are sent in vain
            with self._calls.translate_errors(f"begin an upload of {self.key}", self.key):
                answer = self._calls.client.create_multipart_upload(
                    **self._target,
                    Metadata=self._metadata,
                    **self._calls.upload_arguments,
                    **self._calls.encryption,
                )
            self._upload_id = self._calls.required(answer, "UploadId", "CreateMultipartUpload")
            self._calls.check_encryption(self.key, answer)
        assert self._buffer is not None
        buffer, size, crc, number = self._buffer, self._filled, self._crc, len(self._parts) + 1
        self._buffer, self._filled, self._crc = None, 0, 0
        # In this thread's context: the request is counted for the stream that this thread works for.
        context = contextvars.copy_context()
        part = self._threads.pool.submit(context.run, self._send, self._upload_id, number, buffer, size, crc)
        part.add_done_callback(lambda _: self._threads.buffers.put(buffer))
        self._parts.append(part)

    def _send(self, upload_id: str, number: int, buffer: bytearray, size: int, crc: int) -> dict[str, Any]:
        with (
            self._calls.translate_errors(f"send part {number} of {self.key}", self.key),
            memoryview(buffer)[:size] as content,
        ):
            checksum = self._calls.checksum_arguments(content, crc)
            answer = self._calls.client.upload_part(
                **self._target, UploadId=upload_id, PartNumber=number, Body=request_body(content), **checksum
            )
        return self._calls.part(answer, checksum)

    def _release_buffer(self) -> None:
        if self._buffer is not None:
            self._threads.buffers.put(self._buffer)
            self._buffer, self._filled, self._crc = None, 0, 0
