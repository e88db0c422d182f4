"""The directory in which a task makes its files, before they are sent."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waybill.errors import ScratchUnusable

__all__ = ["scratch_directory"]

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
