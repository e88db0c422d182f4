"""A plan or a lane of a Kinesis stream is killed, or frozen past its successor: no record is lost or repeated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kinesis_scenes import KinesisStream, Put, archive_of

from waybill.base import failpoints
from waybill.config.names import TopicPartition

if TYPE_CHECKING:
    from ingest_scenes import Archive

    from devstack import Stack
    from waybill.records.batches.encode import Record

pytestmark = [pytest.mark.faults, pytest.mark.integration]

SLOTS = 2
_SESSION_SECONDS = 5.0
"""Until the session of a process that does not answer has ended, and its locks with it."""
_RUN = """
import sys
from pathlib import Path
from waybill.base import failpoints
from waybill.archive import ingest
from waybill.config.models import load_config
failpoints.arm(sys.argv[2])
config = load_config(Path(sys.argv[1]))
for lane in ingest.plan_lanes(config, "drill"):
    ingest.run_lane(config, lane, stores_usage=False)
"""
_POINTS = [
    *failpoints.SLOTS,
    *(each for each in failpoints.INGEST if each not in {"ingest.index_created", "ingest.object_inspected"}),
]


@pytest.fixture
def kinesis(stack: Stack, topic_name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[KinesisStream]:
    with KinesisStream.connected(stack, topic_name, monkeypatch) as stream:
        yield stream


@pytest.fixture
def archive(stack: Stack, kinesis: KinesisStream) -> Archive:
    return archive_of(stack, kinesis, SLOTS, upload={"max_age": "0s"})


class Runner:
    """Runs of plan and lanes in processes of their own."""

    def __init__(self, archive: Archive, folder: Path) -> None:
        self._config = folder / "streams.yaml"
        self._config.write_text(archive.config.model_dump_json(exclude_defaults=True))

    def start(self, armed: str = "") -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", _RUN, str(self._config), armed], env=dict(os.environ))

    def run(self, armed: str = "") -> int:
        return self.start(armed).wait(timeout=60)


@pytest.fixture
def runner(archive: Archive, tmp_path: Path) -> Runner:
    return Runner(archive, tmp_path)


def numbered(first: int, count: int) -> list[tuple[str, bytes]]:
    return [(f"key-{number % 7}", b"%d" % number) for number in range(first, first + count)]


def assert_exact(archive: Archive, kinesis: KinesisStream, puts: list[Put]) -> None:
    """Each record is archived once, and those of a shard in order."""
    found: list[Record] = []
    for slot in range(SLOTS):
        found += archive.messages(TopicPartition(kinesis.name, slot))
    by_shard: dict[str, list[int]] = defaultdict(list)
    for record in found:
        headers = {name: (value or b"").decode() for name, value in record.headers}
        by_shard[headers["kinesis.shard_id"]].append(int(headers["kinesis.sequence_number"]))
    wanted: dict[str, list[int]] = defaultdict(list)
    for put in puts:
        wanted[put.shard_id].append(int(put.sequence))
    assert by_shard == wanted


def reshard(kinesis: KinesisStream) -> None:
    """Split the first shard, and merge the two last ones."""
    shards = kinesis.open_shards()
    kinesis.split(shards[0])
    shards = kinesis.open_shards()
    kinesis.merge(shards[-2], shards[-1])


@pytest.mark.deep
def test_killed_at_each_step_nothing_is_lost_or_repeated(
    kinesis: KinesisStream, archive: Archive, runner: Runner
) -> None:
    """One process after the other is killed at the next step, while shards split and merge."""
    puts: list[Put] = []
    killed = []
    for number, point in enumerate(_POINTS):
        puts += kinesis.put(numbered(number * 10, 10))
        if number % 5 == 3:
            reshard(kinesis)
        if runner.run(f"{point}=kill") == -signal.SIGKILL:
            killed.append(point)
            time.sleep(_SESSION_SECONDS)
    # An object is refused only when another lane creates it in between.
    assert len(killed) >= len(_POINTS) - 1, set(_POINTS) - set(killed)
    for _ in range(8):  # a generation of shards for each run
        assert runner.run() == 0
    assert_exact(archive, kinesis, puts)


def test_a_lane_that_sleeps_behind_its_successor_adds_nothing(
    kinesis: KinesisStream, archive: Archive, runner: Runner
) -> None:
    puts: list[Put] = []
    for number, point in enumerate(("ingest.fetched", "ingest.object_cut", "ingest.object_created")):
        puts += kinesis.put(numbered(number * 100, 20))
        sleeping = runner.start(f"{point}=stop")
        try:
            _wait_until_stopped(sleeping)
            time.sleep(_SESSION_SECONDS)
            puts += kinesis.put(numbered(number * 100 + 20, 20))
            assert runner.run() == 0
        finally:
            sleeping.send_signal(signal.SIGCONT)
            sleeping.wait(timeout=60)
    assert runner.run() == 0
    assert_exact(archive, kinesis, puts)


def _wait_until_stopped(process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 40
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert process.poll() is None, "it ended before it was stopped"
        assert time.monotonic() < deadline
        time.sleep(0.05)
