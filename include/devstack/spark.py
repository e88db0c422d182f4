"""A Spark standalone cluster on this machine, from the jars inside pyspark: a master and two workers.

Applications run on it as on a remote cluster: executors are processes of their own, with the Python environment that
the application ships. They get nothing of this checkout, and no connections, except through Spark.
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

WORKERS = (1, 2)
_CORES = 1
_MEMORY = "1536m"
_HOST = "127.0.0.1"


def worker_name(number: int) -> str:
    """Return the server's name: `spark-worker-1`."""
    return f"spark-worker-{number}"


@dataclass(frozen=True)
class SparkCluster:
    """A master and two workers of one core each, with their state in `directory`.

    `ports`: the master's port, its UI's, and the workers' UIs'.
    """

    java: Java
    directory: Path
    ports: tuple[int, int, int, int]

    name = "spark"

    @property
    def master_url(self) -> str:
        """The value of `spark-submit --master`."""
        return f"spark://{_HOST}:{self.ports[0]}"

    @property
    def ui_urls(self) -> tuple[str, ...]:
        """The URLs of the master's UI and the workers' UIs. Each also serves `/json/`."""
        return tuple(f"http://{_HOST}:{port}" for port in self.ports[1:])

    def work_directory(self, number: int) -> Path:
        """Return the directory of a worker's executors and their logs."""
        return self.directory / worker_name(number)

    def specs(self, logs: Path) -> tuple[ServerSpec, ...]:
        """Return the master and the workers. The workers try to reach the master until it is ready."""
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
                "SPARK_LOCAL_IP": _HOST,  # else the UIs would listen on all addresses
                "SPARK_LOCAL_DIRS": str(self.directory),
                "SPARK_DAEMON_MEMORY": "256m",
                "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            },
            # Executors must get these variables only from the application.
            drop_environment=("AIRFLOW", "PYSPARK", "PYTHON", "SPARK_", "VIRTUAL_ENV", "WAYBILL"),
            forks=forks,
        )

    def why_not_ready(self) -> str | None:
        """Return None if the master has registered all workers, else what is missing."""
        try:
            answer = httpx.get(f"{self.ui_urls[0]}/json/", timeout=5.0, trust_env=False).raise_for_status().json()
        except (httpx.HTTPError, ValueError) as error:
            return f"Spark's master does not answer: {error!r}"
        alive = answer["aliveworkers"]
        return None if alive == len(WORKERS) else f"Spark's master has registered {alive} of {len(WORKERS)} workers"
