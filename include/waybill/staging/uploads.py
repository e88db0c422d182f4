"""The directory in which a task makes its files, before they are sent.

Finished data files on their way from the scratch directory to the table's location.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import BoundedSemaphore

from pyiceberg.io import FileIO

from waybill import failpoints
from waybill.errors import ScratchUnusable
from waybill.tables import remove_files

__all__ = ["Uploads", "scratch_directory"]

_OF_A_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM})


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """A directory of one's own where Spark lets its executors put temporary files, else in the system's place.

    Raises `ScratchUnusable` when it cannot be made, and for what the block raises about its disk: it is full, or over
    quota, or can only be read. Other errors pass.
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
            if error.errno not in _OF_A_DISK:
                raise
            raise ScratchUnusable(parent, str(error)) from error


_THREADS = 4
_WAITING = 8
_COPY_BYTES = 8 << 20


class Uploads:
    """Sends finished files from the scratch directory to the table's location, a few at a time.

    What was sent, or begun, can be taken back with `discard`: nothing references it before the commit.
    """

    def __init__(self, io: FileIO) -> None:
        self._io = io
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="waybill-data-file")
        self._room = BoundedSemaphore(_WAITING)
        self._sent: list[tuple[str, Future[None]]] = []

    def send(self, local: Path, path: str) -> None:
        """Send a file and remove it here. Blocks while too many wait. Faults come out of `wait`."""
        self._room.acquire()
        self._sent.append((path, self._pool.submit(self._copy, local, path)))

    def wait(self) -> None:
        """Return when everything has arrived. Raises what went wrong with the first that did not."""
        for _, arrival in self._sent:
            arrival.result()

    def discard(self) -> None:
        """Remove what was sent, as far as that is possible."""
        for _, arrival in self._sent:
            if not arrival.cancel():
                arrival.exception()
        remove_files(self._io, [path for path, _ in self._sent])

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _copy(self, local: Path, path: str) -> None:
        try:
            with local.open("rb") as source, self._io.new_output(path).create(overwrite=True) as target:
                while chunk := source.read(_COPY_BYTES):
                    target.write(chunk)
            local.unlink()
            failpoints.reach("partition.file_sent")
        finally:
            self._room.release()
