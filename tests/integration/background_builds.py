"""Slow preparations that start when the test session starts and run beside other tests: they need no server.

They run at a low priority, mostly in the CPU time that is idle while tests wait for servers. At the lowest priority one
of them did not end within 15 minutes on a busy machine, and the tests that needed it failed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SPARK_ENVIRONMENT = "spark_environment"
"""The name of the fixture that returns the result of `BackgroundBuilds.spark_environment`."""

_REST_JARS = "import catalog_servers; catalog_servers.fetch()"
_MINUTES = 15


class BackgroundBuilds:
    """Runs the preparations for the given fixtures, each in a process of its own."""

    def __init__(self, fixtures: set[str]) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="waybill-tests-builds-"))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        if SPARK_ENVIRONMENT in fixtures:
            command = ("-m", "devstack", "spark-env", "--output", str(self._archive))
            self._start(SPARK_ENVIRONMENT, *command, "--requirements", str(ROOT / "requirements-spark.txt"))
        if "rest" in fixtures:  # the fixture finds the jars in the cache, or waits for this process to download them
            self._start("rest", "-c", _REST_JARS)

    def spark_environment(self) -> Path:
        """Wait for the packed environment that `make spark-env` builds, and return its path."""
        code = self._processes[SPARK_ENVIRONMENT].wait(60 * _MINUTES)
        assert code == 0, self._log(SPARK_ENVIRONMENT).read_text()
        return self._archive

    def close(self) -> None:
        """Kill the processes that still run, and remove their output."""
        for process in self._processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def _archive(self) -> Path:
        return self._directory / "waybill-spark-env.tar.gz"

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _start(self, name: str, *arguments: str) -> None:
        with self._log(name).open("wb") as log:
            self._processes[name] = subprocess.Popen(
                ["nice", "-n", "5", sys.executable, *arguments],
                env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *_python_path()])},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


def _python_path() -> list[str]:
    return [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []
