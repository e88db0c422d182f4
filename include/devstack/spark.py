"""A Spark standalone cluster, from the jars inside pyspark: a master and workers, on this machine only.

What runs on it runs as on a cluster elsewhere: executors are processes of their own, their Python is what the
application ships, and they know nothing of this checkout or of the connections unless Spark hands it to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from devstack.jars import pyspark_jars
from devstack.servers import ServerSpec

if TYPE_CHECKING:
    from pathlib import Path

    from devstack.preflight import Java

__all__ = ["WORKERS", "SparkCluster", "worker_name"]

WORKERS = (1, 2)
_CORES = 1
_MEMORY = "1536m"
_HOST = "127.0.0.1"


def worker_name(number: int) -> str:
    """Of the server, e.g. `spark-worker-1`."""
    return f"spark-worker-{number}"


@dataclass(frozen=True)
class SparkCluster:
    """A master and two workers of one core each, with their state in `directory`.

    `ports`: the master's, that of its UI, and those of the workers' UIs.
    """

    java: Java
    directory: Path
    ports: tuple[int, int, int, int]

    name = "spark"

    @property
    def master_url(self) -> str:
        """For `spark-submit --master`."""
        return f"spark://{_HOST}:{self.ports[0]}"

    @property
    def ui_urls(self) -> tuple[str, ...]:
        """Of the master's UI, then the workers'. Each answers `/json/` as well."""
        return tuple(f"http://{_HOST}:{port}" for port in self.ports[1:])

    def work_directory(self, number: int) -> Path:
        """Where a worker keeps its executors' directories and logs."""
        return self.directory / worker_name(number)

    def specs(self, logs: Path) -> tuple[ServerSpec, ...]:
        """The master and the workers, which look for the master until it is there."""
        self.directory.mkdir(parents=True, exist_ok=True)
        master = ("master.Master", "--host", _HOST, "--port", str(self.ports[0]), "--webui-port", str(self.ports[1]))
        return (
            self._spec("spark-master", master, logs, forks=False),
            *(self._worker(number, port, logs) for number, port in zip(WORKERS, self.ports[2:], strict=True)),
        )

    def _worker(self, number: int, port: int, logs: Path) -> ServerSpec:
        work = self.work_directory(number)
        work.mkdir(exist_ok=True)
        limits = ("--cores", str(_CORES), "--memory", _MEMORY, "--work-dir", str(work))
        arguments = ("worker.Worker", "--host", _HOST, "--webui-port", str(port), *limits, self.master_url)
        return self._spec(worker_name(number), arguments, logs, forks=True)

    def _spec(self, name: str, arguments: tuple[str, ...], logs: Path, *, forks: bool) -> ServerSpec:
        home = pyspark_jars().parent
        return ServerSpec(
            name=name,
            command=(str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{arguments[0]}", *arguments[1:]),
            log=logs / f"{name}.log",
            directory=self.directory,
            environment={
                "SPARK_HOME": str(home),
                "JAVA_HOME": str(self.java.home),
                "SPARK_LOCAL_IP": _HOST,  # or the UIs would listen on all addresses
                "SPARK_LOCAL_DIRS": str(self.directory),
                "SPARK_DAEMON_MEMORY": "256m",
                "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            },
            # What an executor finds in its environment must have come with the application.
            drop_environment=("AIRFLOW", "PYSPARK", "PYTHON", "SPARK_", "VIRTUAL_ENV", "WAYBILL"),
            forks=forks,
        )

    def missing(self) -> str | None:
        """None once the master counts all workers."""
        try:
            answer = httpx.get(f"{self.ui_urls[0]}/json/", timeout=5.0, trust_env=False).raise_for_status().json()
        except (httpx.HTTPError, ValueError) as error:
            return f"Spark's master does not answer: {error!r}"
        alive = answer["aliveworkers"]
        return None if alive == len(WORKERS) else f"Spark's master knows {alive} workers of {len(WORKERS)}"
