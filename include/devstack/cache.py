"""The cache of downloads and builds, which all checkouts share: `$XDG_CACHE_HOME/waybill`, or `~/.cache/waybill`."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def cache_dir() -> Path:
    """Return the directory of the cache, and create it if it does not exist."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    path = Path(base).expanduser() / "waybill"
    path.mkdir(parents=True, exist_ok=True)
    return path


def cached(name: str, build: Callable[[Path], None], on_wait: Callable[[], None] = lambda: None) -> Path:
    """Return the directory `name` of the cache, and build it if it does not exist.

    `build` fills an empty directory beside it, which is then renamed. So the directory is complete or absent, even if
    the process is killed. A file lock makes a second process wait for the first and use its result; `on_wait` is called
    before it waits. If `build` raises, nothing is kept.
    """
    target = cache_dir() / name
    if target.is_dir():
        return target
    with _locked(cache_dir() / f"{name}.lock", on_wait):
        if not target.is_dir():  # another process may have built it while this one waited for the lock
            _build(target, build)
    return target


def _build(target: Path, build: Callable[[Path], None]) -> None:
    for abandoned in target.parent.glob(f"{target.name}.partial-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(prefix=f"{target.name}.partial-", dir=target.parent))
    try:
        build(partial)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
