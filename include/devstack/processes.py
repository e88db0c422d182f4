"""What Linux offers against orphans: dying with the parent, adopting orphans, and ending a whole process tree."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["become_subreaper", "descendants", "die_with_parent", "end_descendants"]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"prctl({option}, {value}): {os.strerror(errno)}")


def die_with_parent(parent_pid: int, signum: int = signal.SIGKILL) -> None:
    """Ask the kernel to send `signum` to this process when its parent ends. For use right after a fork.

    The kernel watches the *thread* that forked, so the parent must fork from a thread that lives as long as it does.
    `parent_pid` closes the race: if the parent ended before the request was made, this process ends here.
    """
    _prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent_pid:
        os._exit(1)


def become_subreaper() -> None:
    """Make this process the parent of every descendant whose own parent ends, double-forked ones included."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """All living descendants of `pid` (default: this process), without zombies."""
    try:
        found = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [process for process in found if _is_alive(process)]


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def end_descendants(
    find: Callable[[], Iterable[psutil.Process]], reap: Callable[[], None], *, deadline_seconds: float = 10.0
) -> None:
    """Send SIGKILL to what `find` returns until it returns nothing: a process may fork while it is being killed.

    `reap` collects the exit codes of children, so that `find` does not see their zombies for ever.
    """
    end = time.monotonic() + deadline_seconds
    while found := list(find()):
        for process in found:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        reap()
        if time.monotonic() > end:  # only a process in uninterruptible sleep gets here
            return
        time.sleep(0.01)
    reap()
