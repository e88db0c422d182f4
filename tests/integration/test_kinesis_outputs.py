"""What comes out of the archive of a Kinesis stream: the commands that serve Kafka's archives serve it, too."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import replay_databases as helpers
from archived_stream import Ran, waybill
from confluent_kafka.admin import AdminClient
from ingest_scenes import one_report
from kinesis_scenes import KinesisStream, Put
from restore_scenes import Message, consume

from devstack import Stack
from waybill.archive.ingest import StreamReport, connect, plan_lanes, run_lane
from waybill.archive.ingest.kinesis.slot_source import slots_of
from waybill.config.models import Config, load_config
from waybill.config.names import TopicPartition
from waybill.replay.requests.migrations import migrate
from waybill.replay.requests.request import time_text_of
from waybill.replay.requests.worker import serve
from waybill.services.coordination import SlotRead
from waybill.services.store import Store

pytestmark = pytest.mark.integration

_STREAM = "events"
_CONFIG = """\
version: 1
storage: {{bucket: waybill, prefix: {unique}}}
zookeeper: {{root: {unique}}}
replay: {{}}
streams:
  {stream}:
    source: kinesis
    kinesis: {{connection: kinesis_test, slots: 3}}
    topics: [{unique}]
    upload: {{max_age: 0s}}
    parser: {{name: raw}}
    table: drill.messages
"""


class Scene:
    """A Kinesis stream of two shards, its config file, and a database of replay requests."""

    def __init__(self, kinesis: KinesisStream, directory: Path) -> None:
        self.kinesis = kinesis
        self.file = directory / "streams.yaml"
        self.file.write_text(_CONFIG.format(unique=kinesis.name, stream=_STREAM))

    @property
    def config(self) -> Config:
        return load_config(self.file)

    def waybill(self, *arguments: str) -> Ran:
        return waybill(*arguments, WAYBILL_CONFIG=str(self.file))

    def ingest(self) -> StreamReport:
        return one_report([run_lane(self.config, lane) for lane in plan_lanes(self.config, _STREAM)])

    def archived_to_ms(self) -> int | None:
        """Return the time up to which a process that starts now believes all records to be archived."""
        with connect(self.config, _STREAM) as services:
            return slots_of(services.source).archived_to_ms()

    def put_numbered(self, first: int, count: int) -> list[Put]:
        return self.kinesis.put((f"key-{number % 7}", b"%05d" % number) for number in range(first, first + count))

    def put_and_split(self) -> list[Put]:
        """Put records before and after a split, and archive them all."""
        puts = self.put_numbered(0, 60)
        self.kinesis.split(self.kinesis.open_shards()[0])
        puts += self.put_numbered(60, 60)
        for _ in range(2):
            self.ingest()
        return puts


@pytest.fixture
def scene(stack: Stack, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    with KinesisStream.connected(stack, topic_name, monkeypatch) as stream:
        yield Scene(stream, tmp_path)


def origin_of(message: Message) -> tuple[str, str]:
    headers = dict(message.headers)
    shard, sequence = headers["kinesis.shard_id"], headers["kinesis.sequence_number"]
    assert shard is not None
    assert sequence is not None
    return shard.decode(), sequence.decode()


# --- restore and replay -----------------------------------------------------------------------------------------------


def test_a_kinesis_archive_is_restored_to_kafka_each_record_once_in_order(scene: Scene, stack: Stack) -> None:
    puts = scene.put_and_split()
    target = f"{scene.kinesis.name}-restored"
    to = ("--to", "kafka_default", "--to-topic", target, "--create", "--replication-factor", "1")
    ran = scene.waybill("restore", "run", _STREAM, *to, "--reason", "test", "--by", "ann")
    assert ran.code == 0, ran.err + ran.out
    try:
        messages = consume(stack.bootstrap_servers, target)
        origins = [origin_of(message) for message in messages]
        assert sorted(origins) == sorted((put.shard_id, put.sequence) for put in puts)
        for slot in range(3):
            own = [message for message in messages if message.partition == slot]
            for key in {message.key for message in own}:
                values = [message.value for message in own if message.key == key]
                assert values == sorted(values)
        restore = str(scene.waybill("restore", "status", "--json").document[-1]["id"])
        assert scene.waybill("restore", "verify", restore).code == 0
    finally:
        admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers})
        admin.delete_topics([target])[target].result(timeout=30)


def test_a_replay_waits_for_the_archive_and_delivers_the_records_of_a_key(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = helpers.sqlite_connection(tmp_path / "replay.db")
    monkeypatch.setenv(database.variable, database.to_environment())
    with helpers.open_database(database) as opened:
        migrate(opened)
    begin_ms = time.time_ns() // 1_000_000 - 60_000
    puts = scene.put_and_split()
    end_ms = time.time_ns() // 1_000_000
    request = scene.waybill(
        *("replay", "create", _STREAM, "--key", "key-3", "--s3", "none", "--by", "ann", "--json"),
        *("--from", time_text_of(begin_ms), "--to", time_text_of(end_ms)),
    )
    assert request.code == 0, request.err
    request_id = str(request.document["id"])
    wanted = [put.data.decode() for put in puts if put.key == "key-3"]
    deadline = time.monotonic() + 60
    while not (delivered := parts(scene, request_id)):
        assert time.monotonic() < deadline, scene.waybill("replay", "show", request_id).out
        scene.ingest()
        serve(scene.config, worker="test", seconds=5)
    assert [
        base64.b64decode(each["base64"]).decode() if isinstance(each, dict) else each for each in delivered
    ] == wanted


def parts(scene: Scene, request_id: str) -> list[Any]:
    """Return the values that a request delivered, in order."""
    with connect(scene.config, _STREAM) as services:
        store: Store = services.store
        keys = list(store.keys(f"{store.prefix}/replays/{request_id}/part-"))
        return [json.loads(line)["value"] for key in keys for line in store.read(key).splitlines()]


# --- up to when everything is archived --------------------------------------------------------------------------------


def test_nothing_counts_as_archived_while_a_shard_waits_for_its_slot(scene: Scene) -> None:
    scene.put_numbered(0, 30)
    assert scene.archived_to_ms() is None
    before_ms = time.time_ns() // 1_000_000
    scene.ingest()
    archived_to_ms = scene.archived_to_ms()
    assert archived_to_ms is not None
    assert before_ms - 5_000 <= archived_to_ms <= time.time_ns() // 1_000_000
    scene.kinesis.split(scene.kinesis.open_shards()[0])
    assert scene.archived_to_ms() is None
    for _ in range(3):
        scene.ingest()
    later_ms = scene.archived_to_ms()
    assert later_ms is not None
    assert later_ms > archived_to_ms


def test_a_slot_that_was_given_a_shard_since_its_last_read_does_not_count_as_archived(scene: Scene) -> None:
    scene.put_numbered(0, 30)
    scene.ingest()
    assert scene.archived_to_ms() is not None
    with connect(scene.config, _STREAM) as services:
        for tp in (TopicPartition(scene.kinesis.name, slot) for slot in range(2)):
            read = services.coordinator.read_slot_reads([tp])[tp]
            services.coordinator.record_slot_read(tp, SlotRead(read.archived_to_ms + 10_000_000, read.shards - 1))
    assert scene.archived_to_ms() is None


def test_a_slot_whose_shards_have_all_ended_holds_nothing_back(scene: Scene) -> None:
    scene.put_numbered(0, 30)
    scene.ingest()
    left, right = scene.kinesis.open_shards()
    scene.kinesis.merge(left, right)
    for _ in range(3):
        scene.ingest()
    merged_ms = time.time_ns() // 1_000_000
    time.sleep(0.05)
    scene.ingest()
    archived_to_ms = scene.archived_to_ms()
    assert archived_to_ms is not None
    assert archived_to_ms >= merged_ms - 5_000


# --- what commands show -----------------------------------------------------------------------------------------------


def test_ls_shows_which_sequence_numbers_each_object_covers_without_a_gap(scene: Scene) -> None:
    puts = scene.put_and_split()
    objects = scene.waybill("ls", _STREAM, "--shards", "--json").document
    reached: dict[str, str] = {}
    for each in sorted(objects, key=lambda each: (each["partition"], each["first_offset"])):
        for shard, covered in each["shards"].items():
            assert covered["after_sequence"] == reached.get(shard, "")
            reached[shard] = covered["last_sequence"] or reached.get(shard, "")
    last: dict[str, str] = {}
    for put in puts:
        last[put.shard_id] = max(last.get(put.shard_id, ""), put.sequence, key=lambda text: int(text or 0))
    assert {shard: sequence for shard, sequence in reached.items() if sequence} == last
    table = scene.waybill("ls", _STREAM, "--shards").out
    assert all(shard in table for shard in last)


# --- commands that need offsets ---------------------------------------------------------------------------------------


def test_offsets_of_a_kinesis_stream_cannot_be_set_or_imported(scene: Scene) -> None:
    ran = scene.waybill("offsets", "set", _STREAM, f"{scene.kinesis.name}/0", "5", "--reason", "test")
    assert ran.code != 0
    assert "Kinesis, whose records have no offsets" in ran.err
    ran = scene.waybill("offsets", "import", _STREAM, "--from-group", "old")
    assert ran.code != 0
    assert f"waybill offsets import {_STREAM} --from-kcl TABLE" in ran.err
