"""Restores that a target refuses midway, and topics whose timestamp type is changed while a restore runs."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import pytest
from restore_models import HOUR_MS, TOPIC, TP, FakeTarget, MemoryStore, batch, config, request

from waybill.archive.restore import PartitionResult, RestorePlan, begin_restore, run_restore, service
from waybill.archive.restore.refusal import explain
from waybill.archive.restore.request import RestoreRequest
from waybill.config.models import Config
from waybill.records.batches.framing import Codec
from waybill.services.kafka.target import AclOperation
from waybill.services.store import Store

NOW_MS = 1_764_000_000_000
OLD_MS = NOW_MS - 50 * HOUR_MS


class Scene:
    """An archive, a target, and the operations that the command line calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.target = MemoryStore(), FakeTarget(NOW_MS)
        monkeypatch.setattr(service.Store, "of", lambda *_: cast("Store", self.store))
        monkeypatch.setattr(service, "_open_target", lambda *_: self.target)
        monkeypatch.setattr(
            "waybill.archive.restore.restore_run.explain", partial(explain, clock=lambda: NOW_MS / 1000)
        )
        self.config: Config = config()

    def begin(self, **options: Any) -> RestorePlan:
        wanted: RestoreRequest = request(**options)
        return begin_restore(self.config, wanted, by="ann", reason="test")

    def run(self, plan: RestorePlan) -> PartitionResult:
        [result] = run_restore(self.config, plan.id)
        return result


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def without_preflight(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> RestorePlan:
    """Plan as if the preflight's estimate had missed everything."""
    with monkeypatch.context() as patched:
        patched.setattr("waybill.archive.restore.preflight.check_topic", lambda *_: iter(()))
        return scene.begin()


@pytest.mark.parametrize("names_records", [True, False], ids=["leader names the record", "leader names none"])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_message_that_the_target_refuses_is_named_and_the_restore_goes_on_after_the_config_is_changed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, codec: Codec, names_records: bool
) -> None:
    ahead_ms = NOW_MS + 2 * HOUR_MS
    scene.store.archive(10, batch(10, [OLD_MS, OLD_MS]), batch(14, [OLD_MS]))
    scene.store.archive(15, batch(15, [OLD_MS, ahead_ms, OLD_MS], codec=codec), batch(18, [OLD_MS]))
    scene.target.topic()
    scene.target.names_records = names_records
    plan = without_preflight(scene, monkeypatch)
    result = scene.run(plan)
    assert not result.is_complete
    message = str(result.error)
    assert "refuses the message at archived offset 16 of flights/0" in message
    assert f"timestamp 2025-11-24T18:00:00Z ({ahead_ms})" in message
    assert "InvalidTimestampError" in message
    assert f"Set message.timestamp.after.max.ms of the topic to more than {2 * HOUR_MS} (it is 3600000)" in message
    assert f"waybill restore run --id {plan.id}" in message
    assert scene.target.times() == [OLD_MS] * 3, "what comes before the batch is in the target"
    scene.target.change_config(TOPIC, {"message.timestamp.after.max.ms": str(3 * HOUR_MS)})
    again = scene.run(plan)
    assert again.is_complete
    assert again.resumed_at == 3
    assert scene.target.times() == [OLD_MS, OLD_MS, OLD_MS, OLD_MS, ahead_ms, OLD_MS, OLD_MS]


def test_archived_offset_is_right_where_compaction_removed_messages(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    from waybill.records.batches.encode import Record, encode_batch

    records = [Record(offset, NOW_MS + 2 * HOUR_MS * (offset == 27), b"k", b"v") for offset in (20, 23, 27, 28)]
    scene.store.archive(20, encode_batch(records, next_offset=30))
    scene.target.topic()
    assert "archived offset 27 of" in str(scene.run(without_preflight(scene, monkeypatch)).error)


@pytest.mark.parametrize(
    ("settings", "key", "expected"),
    [
        ({"max_message_bytes": "80"}, b"k", "MessageSizeTooLargeError. Set max.message.bytes of the topic to"),
        ({"max_message_bytes": "80", "compression_type": "gzip"}, b"k", "or set compression.type=producer"),
        ({"cleanup_policy": "compact"}, None, "takes no message without a key. Set cleanup.policy=delete"),
        ({"message_timestamp_before_max_ms": "1000"}, b"k", "Set message.timestamp.before.max.ms of the topic to"),
    ],
)
def test_other_refusals_name_the_config_and_its_value(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], key: bytes | None, expected: str
) -> None:
    scene.store.archive(0, batch(0, [OLD_MS] * 20, key=key))
    scene.target.topic()
    plan = without_preflight(scene, monkeypatch)
    scene.target.change_config(TOPIC, {name.replace("_", "."): value for name, value in settings.items()})
    message = str(scene.run(plan).error)
    assert "the message at archived offset 0 of flights/0" in message
    assert expected in message
    [first, *_] = settings
    assert f"(it is {settings[first]})" in message


# --- LogAppendTime ---


def test_created_topic_has_create_time_while_the_restore_runs_and_its_own_type_after(scene: Scene) -> None:
    scene.store.settings({"message.timestamp.type": "LogAppendTime"})
    scene.store.archive(0, batch(0, [OLD_MS, OLD_MS + 1], log_append_time_ms=OLD_MS + 2))
    plan = scene.begin(create=True)
    assert any("message.timestamp.type=CreateTime, not LogAppendTime" in each for each in plan.warnings)
    assert plan.document()["warnings"] == list(plan.warnings)
    assert scene.target.topics[TOPIC].config["message.timestamp.type"] == "CreateTime"
    assert scene.run(plan).is_complete
    assert scene.target.times() == [OLD_MS + 2, OLD_MS + 2], "the time that the source's broker gave"
    assert scene.target.topics[TOPIC].config["message.timestamp.type"] == "LogAppendTime"
    before = list(scene.target.changes)
    assert scene.run(plan).is_complete
    assert scene.target.changes == before, "a second run changes no config"


def test_messages_lost_after_the_restore_are_not_restored_with_append_time(scene: Scene) -> None:
    scene.store.settings({"message.timestamp.type": "LogAppendTime"})
    scene.store.archive(0, batch(0, [OLD_MS], log_append_time_ms=OLD_MS), batch(1, [OLD_MS + 1]))
    plan = scene.begin(create=True)
    assert scene.run(plan).is_complete
    log = scene.target.logs[TP]
    log.frames.pop()  # an unclean leader election
    log.end = 1
    assert scene.run(plan).is_complete
    assert [kind.name for _, _, kind in log.frames] == ["CREATE_TIME", "CREATE_TIME"]
    assert scene.target.topics[TOPIC].config["message.timestamp.type"] == "LogAppendTime"


def test_type_stays_and_that_is_said_where_the_user_may_not_change_it(scene: Scene) -> None:
    scene.store.settings({"message.timestamp.type": "LogAppendTime"})
    scene.store.archive(0, batch(0, [OLD_MS]))
    scene.target.allowed = frozenset({AclOperation.READ, AclOperation.WRITE})
    plan = scene.begin(create=True)
    assert "Set message.timestamp.type yourself when everything is restored" in plan.warnings[-1]
    assert scene.run(plan).is_complete
    assert scene.target.changes == []
