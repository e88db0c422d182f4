"""Restores are killed, frozen and run twice, and brokers of targets die: the target holds each message once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from archived_stream import WAYBILL, ArchivedStream
from confluent_kafka.admin import AdminClient, NewTopic
from restore_scenes import Message, consume, target_topic

from devstack import Stack
from waybill.base import failpoints

pytestmark = [pytest.mark.faults, pytest.mark.integration]

MESSAGES = 16_000
TO = ("--to", "kafka_default", "--reason", "test", "--by", "ann")
PLACES = [name for name in failpoints.RESTORE if name not in {"restore.groups_committed"}]
"""Places that a restore with `--suspend-cleanup` reaches."""


@pytest.fixture(scope="module")
def archived(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> ArchivedStream:
    """Some 8 MB in two topic-partitions: several chunks for the producer, and several objects, each."""
    del stack
    # Two processes of a run have tests of this module, so its topic cannot have a fixed name.
    topic = f"test-restore-killed-{uuid.uuid4().hex[:8]}"
    stream = ArchivedStream(tmp_path_factory.mktemp("restore"), topic, max_bytes="512KiB")
    chosen = random.Random(5)
    for codec in ("none", "lz4"):
        producer = stream.producer(**{"compression.codec": codec, "batch.num.messages": 60})
        for number in range(MESSAGES // 2):
            value = chosen.randbytes(500) + number.to_bytes(4, "big")
            producer.produce(stream.topic, value, f"{number}".encode(), number % 2)
            producer.poll(0)
        assert producer.flush(60) == 0
    stream.ingest()
    return stream


@pytest.fixture(scope="module")
def originals(archived: ArchivedStream) -> list[Message]:
    return consume(archived.servers, archived.topic)


@pytest.fixture
def target(archived: ArchivedStream) -> Iterator[str]:
    with target_topic(archived, retention_ms="86400000") as name:
        yield name


def begin(stream: ArchivedStream, arguments: tuple[str, ...], failpoint: str = "") -> subprocess.Popen[str]:
    environment = {**os.environ, "WAYBILL_CONFIG": str(stream.file), "WAYBILL_FAILPOINTS": failpoint}
    return subprocess.Popen(
        [WAYBILL, "restore", "run", *arguments, "--json"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def whole(target: str) -> tuple[str, ...]:
    return ("events", *TO, "--to-topic", target, "--suspend-cleanup")


def restore_into(stream: ArchivedStream, target: str) -> str:
    """Return the id of the restore into a topic, once its plan is stored."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for each in stream.waybill("restore", "status", "--json").document:
            if each["partitions"][0]["target_topic"] == target:
                return str(each["id"])
        time.sleep(0.2)
    raise AssertionError("no restore began within 60 s")


def continue_and_check(stream: ArchivedStream, target: str, originals: list[Message]) -> None:
    restore = restore_into(stream, target)
    process = begin(stream, ("--id", restore))
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err + out
    check(stream, target, originals, restore)


def check(stream: ArchivedStream, target: str, originals: list[Message], restore: str) -> None:
    found = consume(stream.servers, target)
    assert len(found) == len(originals)
    assert [message.without_offset() for message in found] == [message.without_offset() for message in originals]
    report = stream.waybill("restore", "verify", restore, "--json").document
    assert (report["sound"], report["messages"]) == (True, len(originals))


@pytest.mark.deep
@pytest.mark.matrix
@pytest.mark.parametrize("place", PLACES)
def test_restore_that_was_killed_continues_and_repeats_nothing(
    archived: ArchivedStream, originals: list[Message], target: str, place: str
) -> None:
    process = begin(archived, whole(target), f"{place}=kill")
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    continue_and_check(archived, target, originals)


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.deep), pytest.param(5, marks=pytest.mark.deep)])
def test_restore_that_is_killed_between_batches_in_flight_continues_after_them(
    archived: ArchivedStream, originals: list[Message], target: str, count: int
) -> None:
    process = begin(archived, whole(target), f"restore.sent=kill@{count}")
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    continue_and_check(archived, target, originals)


@pytest.mark.deep
def test_frozen_restore_that_wakes_after_its_successor_has_finished_repeats_nothing(
    archived: ArchivedStream, originals: list[Message], target: str
) -> None:
    zombie = begin(archived, whole(target), "restore.sent=stop@3")
    restore = restore_into(archived, target)
    wait_until_stopped(zombie)
    successor = begin(archived, ("--id", restore))
    out, err = successor.communicate(timeout=120)
    assert successor.returncode == 0, err + out
    zombie.send_signal(signal.SIGCONT)
    out, err = zombie.communicate(timeout=120)
    assert zombie.returncode == 0, err + out
    assert sum(each["messages"] for each in json.loads(out)["partitions"]) >= 0
    check(archived, target, originals, restore)


def wait_until_stopped(process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T":
            return
        time.sleep(0.05)
    raise AssertionError("the process did not stop itself within 60 s")


@pytest.mark.deep
def test_two_processes_that_carry_out_one_restore_at_once_produce_each_message_once(
    archived: ArchivedStream, originals: list[Message], target: str
) -> None:
    planner = begin(archived, whole(target), "restore.planned=kill")
    planner.communicate(timeout=120)
    restore = restore_into(archived, target)
    rivals = [begin(archived, ("--id", restore)) for _ in range(2)]
    outputs = [rival.communicate(timeout=240) for rival in rivals]
    assert [rival.returncode for rival in rivals] == [0, 0], outputs
    check(archived, target, originals, restore)


@pytest.mark.deep
@pytest.mark.stack_alone
def test_restore_survives_the_loss_of_the_leader_of_its_target(
    stack: Stack, archived: ArchivedStream, originals: list[Message]
) -> None:
    name = "test-restore-target-replicated"
    admin = AdminClient({"bootstrap.servers": archived.servers})
    config = {"retention.ms": "-1", "min.insync.replicas": "2"}
    admin.create_topics([NewTopic(name, 2, 3, config=config)])[name].result(timeout=30)
    deadline = time.monotonic() + 30
    while 0 not in (partitions := admin.list_topics(name, timeout=30).topics[name].partitions):
        assert time.monotonic() < deadline, "a broker has not learned of the new topic"
        time.sleep(0.1)
    leader = partitions[0].leader
    process = begin(archived, ("events", *TO, "--to-topic", name), "restore.sent=sleep:3@3")
    restore = restore_into(archived, name)
    time.sleep(2)
    stack.kill_broker(leader)
    try:
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, err + out
    finally:
        stack.start_broker(leader)
    check(archived, name, originals, restore)
