"""What the integration tests share: Kafka and an archive of a topic, one Spark session, archives to partition."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from background_builds import BackgroundBuilds

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_pages import Server
    from ingest_scenes import Archive, Cluster
    from maintenance_scenes import MaintenanceRunner
    from partition_scenes import Scene
    from pyspark.sql import SparkSession

    from devstack import Stack
    from waybill.config.names import TopicPartition


_background_builds = pytest.StashKey[BackgroundBuilds]()


def pytest_collection_finish(session: pytest.Session) -> None:
    if not session.config.option.collectonly:
        fixtures = {name for item in session.items for name in getattr(item, "fixturenames", ())}
        builds = session.config.stash[_background_builds] = BackgroundBuilds(fixtures)
        session.config.add_cleanup(builds.close)


@pytest.fixture(scope="session")
def spark_environment(pytestconfig: pytest.Config) -> Path:
    """The archive of the executors' Python, as `make spark-env` makes it."""
    return pytestconfig.stash[_background_builds].spark_environment()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # PySpark leaves the sockets that results come through to the garbage collector.
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture
def cluster(stack: Stack) -> Cluster:
    """The stack's Kafka, from a producer's and an administrator's side."""
    from ingest_scenes import Cluster

    return Cluster(stack.bootstrap_servers)


@pytest.fixture
def tp(cluster: Cluster, topic_name: str) -> TopicPartition:
    """The one topic-partition of `topic_name`, which exists now."""
    from waybill.config.names import TopicPartition

    cluster.create(topic_name)
    return TopicPartition(topic_name, 0)


@pytest.fixture
def archive(stack: Stack, topic_name: str) -> Archive:
    """An archive of the topic `topic_name`."""
    from ingest_scenes import Archive

    return Archive(stack, topic_name, [topic_name])


@pytest.fixture
def spark(spark_session: SparkSession) -> Iterator[SparkSession]:
    """The run's Spark session."""
    yield spark_session
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()  # here, and not in the middle of another test


@pytest.fixture(scope="session")
def spark_session(stack: Stack) -> Iterator[SparkSession]:
    """One session for the whole run, `local[2]`; its workers find the stack in the environment."""
    from pyspark import SparkContext

    from waybill.tables.spark.session import spark_session as start

    session = start("waybill-tests")
    yield session
    gateway = SparkContext._gateway
    session.stop()
    if gateway is not None:  # else its JVM, a gigabyte, stays until the last test of the run
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(timeout=30)
        SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(scope="session")
def airflow_pages(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Airflow's API server with Waybill's pages."""
    from airflow_pages import serving

    with serving(tmp_path_factory.mktemp("airflow")) as server:
        yield server


@pytest.fixture
def make_scene(stack: Stack) -> Iterator[Callable[..., Scene]]:
    """Makes streams with an archive and tables of their own; keywords are the stream's settings."""
    from partition_scenes import new_scene

    made = []

    def make(**stream_settings: Any) -> Scene:
        made.append(new_scene(**stream_settings))
        return made[-1]

    yield make
    for scene in made:
        scene.store.close()
        scene.catalog.close()


@pytest.fixture
def maintenance(spark: SparkSession) -> MaintenanceRunner:
    """Maintenance, with Iceberg's own procedures on the run's Spark session."""
    from maintenance_scenes import MaintenanceRunner

    return MaintenanceRunner.on(spark)
