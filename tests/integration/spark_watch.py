"""Looks at the processes of a Spark application while it runs, as anybody on its machines could."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil

_PAUSE_SECONDS = 0.2


@dataclass
class PythonWorker:
    """A Python process of an executor."""

    pid: int
    executor_pid: int
    executable: str
    """As it was started."""
    directory: Path
    libraries: set[str] = field(default_factory=set)
    """The shared libraries that it has loaded."""
    variables: dict[str, str] = field(default_factory=dict)


class SparkWatch:
    """A context manager: watches until the block ends. `below`: where the workers of the cluster keep executors."""

    def __init__(self, below: Path) -> None:
        self.command_lines: set[str] = set()
        """Of every process of the machine."""
        self.workers: dict[int, PythonWorker] = {}
        self._below = below
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="spark-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def running(self) -> list[PythonWorker]:
        """The Python processes that live now and have begun with a task."""
        self._look()
        return [worker for worker in self.workers.values() if psutil.pid_exists(worker.pid) and worker.libraries]

    def _watch(self) -> None:
        while not self._end.wait(_PAUSE_SECONDS):
            self._look()

    def _look(self) -> None:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                command = process.cmdline()
                self.command_lines.add(" ".join(command))
                if "pyspark.daemon" in command and Path(process.cwd()).is_relative_to(self._below):
                    self._note(process, command[0])

    def _note(self, process: psutil.Process, executable: str) -> None:
        parent = process.parent()
        if parent is None:
            return
        known = self.workers.setdefault(
            process.pid, PythonWorker(process.pid, parent.pid, executable, Path(process.cwd()))
        )
        known.libraries |= {area.path for area in process.memory_maps() if ".so" in area.path}
        known.variables = process.environ()
