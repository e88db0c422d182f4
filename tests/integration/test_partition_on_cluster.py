"""The partition job on a Spark cluster whose executors get their Python shipped, and of which some are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pytest
import yaml
from partition_scenes import DAY_MS, Scene, event, junk, new_scene
from spark_watch import PythonWorker, SparkWatch

from devstack import Stack
from devstack.servers import free_ports
from devstack.spark import SparkCluster
from waybill.config.names import TopicPartition
from waybill.records.batches.framing import Codec

pytestmark = [pytest.mark.deep, pytest.mark.integration, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
TPS = [TopicPartition("flights", partition) for partition in range(3)]
PATIENCE_SECONDS = 400.0


@dataclass
class Ran:
    """The results of an application, and what its UIs and logs showed."""

    scene: Scene
    exit_code: int
    log: str
    report: dict[str, object]
    watch: SparkWatch
    killed: list[str]
    shown: dict[str, str] = field(default_factory=dict)
    """Texts of UIs, logs and command lines, by where they appeared."""


@pytest.fixture(scope="module")
def spark_cluster(stack: Stack) -> Iterator[SparkCluster]:
    yield stack.start_spark()
    stack.stop_spark()


@pytest.fixture(scope="module")
def ran(
    stack: Stack, spark_cluster: SparkCluster, spark_environment: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ran]:
    """`spark-submit` of the job; while tasks write, a Python worker and then an executor of another are killed."""
    scene = new_scene(partition={"task_bytes": "1MiB", "memory": "16MiB"})
    _fill(scene)
    directory = tmp_path_factory.mktemp("submitted")
    (directory / "streams.yaml").write_text(yaml.safe_dump(scene.config.model_dump(mode="json")))
    (ui_port,) = free_ports(1)
    command = _submit(spark_cluster, spark_environment, directory, ui_port)
    with (
        SparkWatch(spark_cluster.directory) as watch,
        (directory / "log").open("wb") as log,
        ThreadPoolExecutor(1) as looking,
    ):
        job = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            first = _wait_for(lambda: watch.running(), job)
            executor = _jvm(first[0])
            killed = [_kill_python(first[0])]
            looked = looking.submit(_look, spark_cluster, ui_port)  # while there is much to do yet
            others = _wait_for(lambda: [w for w in watch.running() if _jvm(w) != executor], job)
            killed.append(_kill_executor(others[0]))
            shown = looked.result()
            exit_code = job.wait(PATIENCE_SECONDS)
        finally:
            job.kill()
            job.wait()
    shown |= {str(path): path.read_text(errors="replace") for path in _written(stack, spark_cluster, directory)}
    shown["command lines"] = "\n".join(watch.command_lines)
    reports = directory / "report.json"
    report = json.loads(reports.read_text())[0] if reports.exists() else {}
    yield Ran(scene, exit_code, (directory / "log").read_text(), report, watch, killed, shown)
    scene.store.close()
    scene.catalog.close()


def _fill(scene: Scene) -> None:
    """7 MB in three chains, and so more tasks than the cluster has cores."""
    rng = random.Random(1)
    for tp in TPS:
        for first in range(0, 2000, 500):
            records = [
                junk(first + n)
                if rng.random() < 0.02
                else event(first + n, at := rng.randrange(12 * DAY_MS), value=_value(first + n, at, rng))
                for n in range(500)
            ]
            scene.put(tp, records, codec=Codec.NONE)


def _value(number: int, at: int, rng: random.Random) -> bytes:
    return json.dumps({"id": str(number), "at": at, "text": rng.randbytes(600).hex()}).encode()


def _submit(cluster: SparkCluster, environment: Path, directory: Path, ui_port: int) -> list[str]:
    scratch = cluster.directory / "executors"
    scratch.mkdir()
    settings = {
        # An executor that is killed leaves its copy of the archive there, 240 MB.
        "spark.executor.extraJavaOptions": f"-Djava.io.tmpdir={scratch}",
        "spark.pyspark.python": "./environment/bin/python",
        "spark.pyspark.driver.python": sys.executable,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        # What a careful user would not switch on, and what must show no secret all the same.
        "spark.ui.enabled": "true",
        "spark.ui.port": str(ui_port),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": directory.as_uri(),
        # Time to look at a task, and to kill it, in the middle of its work.
        "spark.executorEnv.WAYBILL_FAILPOINTS": "partition.span_read=sleep:4",
    }
    return [
        *(str(Path(sys.executable).with_name("spark-submit")), "--master", cluster.master_url),
        *("--archives", f"{environment}#environment"),
        *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}")),
        *(str(ROOT / "spark_jobs" / "partition.py"), "--stream", "flights"),
        *("--config", str(directory / "streams.yaml"), "--report", str(directory / "report.json")),
    ]


def _wait_for(find: Callable[[], list[PythonWorker]], job: subprocess.Popen[bytes]) -> list[PythonWorker]:
    """Return the Python workers that execute a task: forked ones that have loaded the modules of tasks."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end and job.poll() is None:
        if found := [worker for worker in find() if any("pyarrow" in path for path in worker.libraries)]:
            return found
        time.sleep(0.2)
    raise AssertionError(f"no Python worker is at a task; spark-submit's exit code: {job.poll()}")


def _jvm(worker: PythonWorker) -> int:
    """The executor, which is the parent of the Python daemon that the worker was forked from."""
    return psutil.Process(worker.executor_pid).ppid()


def _kill_python(worker: PythonWorker) -> str:
    os.kill(worker.pid, signal.SIGKILL)
    return "a Python worker"


def _kill_executor(worker: PythonWorker) -> str:
    process = psutil.Process(_jvm(worker))
    assert "CoarseGrainedExecutorBackend" in " ".join(process.cmdline())
    process.kill()
    return "an executor"


def _look(cluster: SparkCluster, ui_port: int) -> dict[str, str]:
    """Return what the UIs show while the application runs. The driver's comes first: it ends with the application."""
    driver = f"http://127.0.0.1:{ui_port}"
    [application] = _get(f"{driver}/api/v1/applications").json()
    of_driver = ("/environment/", f"/api/v1/applications/{application['id']}/environment", "/executors/")
    urls = [driver + page for page in of_driver]
    urls += [f"{cluster.ui_urls[0]}/app/?appId={application['id']}"]
    urls += [f"{url}{page}" for url in cluster.ui_urls for page in ("/", "/json/")]
    return {url: _get(url).text for url in urls}


def _get(url: str) -> httpx.Response:
    return httpx.get(url, trust_env=False, follow_redirects=True, timeout=120.0).raise_for_status()


def _written(stack: Stack, cluster: SparkCluster, directory: Path) -> list[Path]:
    """Return logs and event logs."""
    of_executors = [path for name in ("stdout", "stderr") for path in cluster.directory.glob(f"*/app-*/*/{name}")]
    events = [path for path in directory.rglob("*") if path.is_file() and "streams" not in path.name]
    return [*stack.logs.glob("spark-*.log"), *of_executors, *events]


def test_every_message_is_in_the_tables_once_after_executors_were_killed(ran: Ran) -> None:
    assert ran.killed == ["a Python worker", "an executor"]
    assert ran.exit_code == 0, ran.log[-4000:]
    assert ran.report["tasks"] == 6
    assert ran.report["end"] == {f"flights/{tp.partition}": 2000 for tp in TPS}
    ran.scene.check_exactly_once()


def test_tasks_ran_on_both_workers_with_the_python_that_was_shipped(ran: Ran) -> None:
    at_work = [worker for worker in ran.watch.workers.values() if any("pyarrow" in p for p in worker.libraries)]
    assert {worker.directory.parents[1].name for worker in at_work} == {"spark-worker-1", "spark-worker-2"}
    for worker in at_work:
        assert worker.executable == "./environment/bin/python"
        packages = {path for path in worker.libraries if "site-packages" in path}
        assert packages
        assert all(path.startswith(str(worker.directory / "environment")) for path in packages)


def test_secrets_of_connections_appear_only_in_executors(ran: Ran, stack: Stack) -> None:
    daemons = [worker for worker in ran.watch.workers.values() if worker.variables]
    assert daemons
    assert all(stack.s3_secret_key in worker.variables["AIRFLOW_CONN_AWS_DEFAULT"] for worker in daemons)
    assert not [where for where, text in ran.shown.items() if stack.s3_secret_key in text]
    assert "CoarseGrainedExecutorBackend" in ran.shown["command lines"]
    assert any("redacted" in text for where, text in ran.shown.items() if where.endswith("/environment"))
