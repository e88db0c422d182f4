"""Scratch space of a task, and the upload of the data files that the task writes there."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import BoundedSemaphore

from pyiceberg.io import FileIO

from waybill.base import failpoints
from waybill.base.errors import ScratchUnusable
from waybill.tables.iceberg import remove_files

_THREADS = 4
_QUEUE_LENGTH = 8
_COPY_BYTES = 8 << 20
_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM})


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """Create a directory for this task where Spark puts its executors' temporary files, else in the system's directory.

    Raises `ScratchUnusable` when the directory cannot be created, and in place of an error of the disk within the
    block: disk full, quota exceeded, read-only file system. Other errors pass.
    """
    parent = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
    try:
        scratch = tempfile.TemporaryDirectory(prefix="waybill-", dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise ScratchUnusable(parent, str(error)) from error
    with scratch as name:
        try:
            yield Path(name)
        except OSError as error:
            if error.errno not in _DISK_ERRORS:
                raise
            raise ScratchUnusable(parent, str(error)) from error


class BoundedUploader:
    """Runs uploads in threads. `submit` blocks while too many uploads wait, so that the scratch disk stays small."""

    def __init__(self, *, threads: int, queue_length: int, thread_name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=thread_name)
        self._free_places = BoundedSemaphore(queue_length)
        self._uploads: list[Future[None]] = []

    def submit(self, upload: Callable[[], None]) -> None:
        """Run `upload` in a thread. Its error is raised by `wait`."""
        self._free_places.acquire()
        self._uploads.append(self._pool.submit(self._run, upload))

    def wait(self) -> None:
        """Wait for all uploads. Raise the error of the first that failed."""
        for upload in self._uploads:
            upload.result()

    def cancel(self) -> None:
        """Cancel uploads that have not started, and wait for the others."""
        for upload in self._uploads:
            if not upload.cancel():
                upload.exception()

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, upload: Callable[[], None]) -> None:
        try:
            upload()
        finally:
            self._free_places.release()


class Uploads:
    """Uploads finished data files from the scratch directory to the table's location, a few at a time.

    `discard` deletes them again: no table references them before the commit.
    """

    def __init__(self, io: FileIO) -> None:
        self._io = io
        self._uploader = BoundedUploader(threads=_THREADS, queue_length=_QUEUE_LENGTH, thread_name="waybill-data-file")
        self._paths: list[str] = []

    def send(self, local: Path, path: str) -> None:
        """Upload a file to `path` and delete the local one. Blocks while too many wait. `wait` raises its errors."""
        self._paths.append(path)
        self._uploader.submit(lambda: self._copy(local, path))

    def wait(self) -> None:
        """Wait for all uploads. Raise the error of the first that failed."""
        self._uploader.wait()

    def discard(self) -> None:
        """Delete all uploaded files that can be deleted."""
        self._uploader.cancel()
        remove_files(self._io, self._paths)

    def close(self) -> None:
        """Stop the threads."""
        self._uploader.close()

    def _copy(self, local: Path, path: str) -> None:
        with local.open("rb") as source, self._io.new_output(path).create(overwrite=True) as target:
            while chunk := source.read(_COPY_BYTES):
                target.write(chunk)
        local.unlink()
        failpoints.reach("partition.file_sent")
