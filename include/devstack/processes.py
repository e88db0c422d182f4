"""Means of Linux against orphaned processes: a signal at the parent's end, adoption, and ending a process tree."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"prctl({option}, {value}): {os.strerror(errno)}")


def die_with_parent(parent_pid: int, signum: int = signal.SIGKILL) -> None:
    """Ask the kernel to send `signum` to this process when its parent ends. Call it right after a fork.

    The kernel watches the *thread* that forked, so the parent must fork from a thread that lives as long as the parent.
    If the parent has ended before this call, no signal would come: then `parent_pid` differs, and this process ends.
    """
    _prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent_pid:
        os._exit(1)


def become_subreaper() -> None:
    """Make this process the parent of every descendant whose parent ends, also of double-forked ones."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """Return the living descendants of `pid` (default: of this process), without zombies."""
    try:
        processes = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [process for process in processes if is_alive(process)]


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def end_descendants(
    find: Callable[[], Iterable[psutil.Process]], reap: Callable[[], None], *, deadline_seconds: float = 10.0
) -> None:
    """Send SIGKILL to the processes that `find` returns, until it returns none: a process may fork before it is killed.

    `reap` collects the exit codes of children, so that they do not stay zombies.
    """
    end = time.monotonic() + deadline_seconds
    while processes := list(find()):
        for process in processes:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        reap()
        if time.monotonic() > end:  # only a process in uninterruptible sleep survives so long
            return
        time.sleep(0.01)
    reap()
