"""The preflight: which configs of a target refuse or delete what is archived, and how a missing topic is created."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest
from restore_models import HOUR_MS, TOPIC, TP, FakeTarget, MemoryStore, batch, config, request

from waybill.archive.restore.figures import measure
from waybill.archive.restore.preflight import Findings, examine
from waybill.archive.restore.request import SourceRange, find_ranges
from waybill.records.batches.framing import Codec
from waybill.services.kafka.target import TargetCluster
from waybill.services.store import Store

NOW_MS = 1_764_000_000_000
NOW = datetime.fromtimestamp(NOW_MS / 1000, UTC)


@pytest.fixture
def store() -> MemoryStore:
    """Five days of messages, in three objects."""
    made = MemoryStore()
    made.archive(0, batch(0, [NOW_MS - 120 * HOUR_MS, NOW_MS - 119 * HOUR_MS]), batch(2, [NOW_MS - 80 * HOUR_MS]))
    made.archive(3, batch(3, [NOW_MS - 60 * HOUR_MS], codec=Codec.ZSTD))
    made.archive(4, batch(4, [NOW_MS - HOUR_MS]))
    return made


def ranges_of(store: MemoryStore, **options: Any) -> list[SourceRange]:
    return find_ranges(cast("Store", store), config().stream("flights"), request(**options))


def preflight(store: MemoryStore, target: FakeTarget, **options: Any) -> Findings:
    return examine(
        config(), cast("Store", store), cast("TargetCluster", target), request(**options), ranges_of(store), NOW
    )


def refusals(findings: Findings) -> list[str]:
    return [str(each) for each in findings.problems if not each.is_warning]


def warnings(findings: Findings) -> list[str]:
    return [str(each) for each in findings.problems if each.is_warning]


def test_sound_target_has_no_problem(store: MemoryStore) -> None:
    target = FakeTarget(NOW_MS)
    target.topic()
    assert preflight(store, target).problems == []


@pytest.mark.parametrize("position", [0, 1, 2], ids=["first object", "middle object", "last object"])
def test_message_stamped_ahead_is_refused_wherever_it_is(position: int) -> None:
    store, target = MemoryStore(), FakeTarget(NOW_MS)
    target.topic()
    for number in range(3):
        ahead_ms = 2 * HOUR_MS if number == position else -HOUR_MS
        store.archive(2 * number, batch(2 * number, [NOW_MS - HOUR_MS, NOW_MS + ahead_ms]))
    [problem] = refusals(preflight(store, target))
    assert "refuses messages with a timestamp more than 1h ahead (message.timestamp.after.max.ms=3600000)" in problem
    assert f"offsets {2 * position}–{2 * position + 1} of flights/0" in problem
    assert f"({NOW_MS + 2 * HOUR_MS}), 2h ahead" in problem
    assert f"Set message.timestamp.after.max.ms of the topic to {2 * HOUR_MS} or more" in problem
    target.change_config(TOPIC, {"message.timestamp.after.max.ms": str(2 * HOUR_MS)})
    assert refusals(preflight(store, target)) == []


def test_message_stamped_in_microseconds_is_refused_and_named_without_a_date(store: MemoryStore) -> None:
    store.archive(5, batch(5, [NOW_MS * 1000]))
    target = FakeTarget(NOW_MS)
    target.topic()
    [problem] = refusals(preflight(store, target))
    assert f"timestamp {NOW_MS * 1000} ms after 1970" in problem


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"message_timestamp_type": "LogAppendTime"}, "Set it to CreateTime"),
        ({"message_timestamp_before_max_ms": str(120 * HOUR_MS)}, f"before.max.ms of the topic to {121 * HOUR_MS}"),
        ({"retention_ms": str(120 * HOUR_MS)}, "the oldest archived message is 5d old: it would be deleted"),
        ({"retention_bytes": "100"}, "keeps 100 bytes of each partition (retention.bytes)"),
        ({"max_message_bytes": "70"}, "max.message.bytes of the topic to"),
        ({"segment_bytes": "70"}, "segment.bytes of the topic to"),
        ({"cleanup_policy": "compact"}, "Give --suspend-cleanup"),
        ({"cleanup_policy": "compact,delete"}, "Give --suspend-cleanup"),
    ],
)
def test_config_that_would_stop_the_restore_or_lose_messages_is_refused(
    store: MemoryStore, settings: dict[str, str], expected: str
) -> None:
    target = FakeTarget(NOW_MS)
    target.topic(**settings)
    [problem] = refusals(preflight(store, target))
    assert expected in problem


@pytest.mark.parametrize("settings", [{"retention_ms": "1000"}, {"retention_bytes": "100"}])
def test_retention_is_no_problem_while_cleanup_is_suspended(store: MemoryStore, settings: dict[str, str]) -> None:
    target = FakeTarget(NOW_MS)
    target.topic(**settings)
    assert preflight(store, target, suspend_cleanup=True).problems == []


def test_missing_in_sync_replicas_are_refused_but_not_fewer_replicas(store: MemoryStore) -> None:
    from dataclasses import replace

    target = FakeTarget(NOW_MS)
    made = target.topic(min_insync_replicas="2")
    target.topics[TOPIC] = replace(made, in_sync=1, replicas=3)
    [problem] = refusals(preflight(store, target))
    assert "min.insync.replicas=2, and one of its partitions has 1 in-sync replicas" in problem
    target.topics[TOPIC] = replace(made, in_sync=1, replicas=1)
    assert preflight(store, target).problems == []


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"compression_type": "gzip"}, "the archive has uncompressed, zstd batches: the target compresses them again"),
        ({"compression_type": "uncompressed"}, "the archive has zstd batches"),
    ],
)
def test_compression_that_changes_the_bytes_is_a_warning(
    store: MemoryStore, settings: dict[str, str], expected: str
) -> None:
    target = FakeTarget(NOW_MS)
    target.topic(**settings)
    findings = preflight(store, target)
    assert refusals(findings) == []
    [warning] = warnings(findings)
    assert expected in warning


def test_short_segments_are_a_warning_with_the_number_of_segments() -> None:
    store, target = MemoryStore(), FakeTarget(NOW_MS)
    store.archive(0, batch(0, [NOW_MS - 2 * HOUR_MS + 3_600 * number for number in range(2_000)]))
    target.topic(segment_ms="1000")
    [warning] = warnings(preflight(store, target))
    assert "segment.ms=1000), so one partition may get up to 2000 segments" in warning


# --- topics that are created ---


def test_topic_archived_with_append_time_is_created_with_create_time_and_gets_its_type_back(store: MemoryStore) -> None:
    store.settings({"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"})
    findings = preflight(store, FakeTarget(NOW_MS), create=True)
    assert refusals(findings) == []
    [warning] = warnings(findings)
    assert "will be created with message.timestamp.type=CreateTime, not LogAppendTime" in warning
    creation = findings.creations[TOPIC]
    assert creation.topic.own_config == {"message.timestamp.type": "CreateTime", "retention.ms": "-1"}
    assert creation.comes_back == {"message.timestamp.type": "LogAppendTime"}


def test_append_time_that_is_the_default_of_the_target_does_not_come_to_a_created_topic(store: MemoryStore) -> None:
    target = FakeTarget(NOW_MS, message_timestamp_type="LogAppendTime")
    findings = preflight(store, target, create=True)
    assert refusals(findings) == []
    creation = findings.creations[TOPIC]
    assert creation.topic.own_config == {"message.timestamp.type": "CreateTime"}
    assert creation.comes_back == {"message.timestamp.type": None}


def test_config_that_the_target_does_not_know_is_left_out_and_named(store: MemoryStore) -> None:
    archived = {"message.format.version": "2.8", "max.message.bytes": "2000000", "remote.storage.enable": "true"}
    store.settings(archived)
    target = FakeTarget(NOW_MS, unknown=["message.format.version", "remote.storage.enable"])
    findings = preflight(store, target, create=True)
    assert refusals(findings) == []
    assert findings.creations[TOPIC].topic.own_config == {"max.message.bytes": "2000000"}
    one, two = warnings(findings)
    assert "without message.format.version=2.8 of the archived topic: the target refuses it (Invalid" in one
    assert "without remote.storage.enable=true" in two


def test_created_topic_has_no_more_in_sync_replicas_than_replicas(store: MemoryStore) -> None:
    store.settings({"min.insync.replicas": "2"})
    findings = preflight(store, FakeTarget(NOW_MS), create=True, replication_factor=1)
    assert refusals(findings) == []
    assert findings.creations[TOPIC].topic.own_config == {"min.insync.replicas": "1"}
    [warning] = warnings(findings)
    assert "min.insync.replicas=1, not 2" in warning
    assert preflight(store, FakeTarget(NOW_MS), create=True, replication_factor=2).problems == []


def test_more_replicas_than_brokers_and_a_missing_acl_are_refused_with_what_the_target_says(store: MemoryStore) -> None:
    target = FakeTarget(NOW_MS, brokers=1)
    [problem] = refusals(preflight(store, target, create=True, replication_factor=3))
    assert "cannot be created at kafka:9092: InvalidReplicationFactorError: Unable to replicate" in problem
    assert "--replication-factor" in problem
    target.may_create = False
    [problem] = refusals(preflight(store, target, create=True))
    assert "Give the user the ACL Create" in problem


def test_defaults_of_the_target_count_for_a_topic_that_is_created(store: MemoryStore) -> None:
    store.archive(5, batch(5, [NOW_MS + 3 * HOUR_MS]))
    target = FakeTarget(NOW_MS, retention_ms=str(24 * HOUR_MS), max_message_bytes="70")
    retention, ahead, size = refusals(preflight(store, target, create=True))
    assert "retention.ms=86400000" in retention
    assert "Create the topic yourself, and set its message.timestamp.after.max.ms to 10800000" in ahead
    assert "max.message.bytes" in size


def test_defaults_that_the_target_does_not_state_are_said_not_to_be_checked(store: MemoryStore) -> None:
    target = FakeTarget(NOW_MS)
    target.states_configs = False
    [warning] = warnings(preflight(store, target, create=True))
    assert "its defaults are not checked" in warning


# --- figures ---


def test_figures_of_a_large_archive_are_an_estimate_that_knows_the_last_objects(store: MemoryStore) -> None:
    last = store.archive(5, batch(5, [NOW_MS]), batch(6, [NOW_MS + 5 * HOUR_MS]))
    [figures] = measure(cast("Store", store), ranges_of(store), read_bytes=len(store.objects[last])).values()
    assert figures.is_estimate
    assert figures.newest_ms == NOW_MS + 5 * HOUR_MS
    assert figures.oldest_ms == NOW_MS - 120 * HOUR_MS
    [exact] = measure(cast("Store", store), ranges_of(store)).values()
    assert not exact.is_estimate
    assert exact.read_bytes == exact.size_bytes == sum(map(len, store.objects.values()))
    assert exact.codecs == {Codec.NONE, Codec.ZSTD}


def test_estimate_is_said_in_the_preflight(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.archive.restore.preflight.measure", lambda *a: measure(*a, read_bytes=1))
    target = FakeTarget(NOW_MS)
    target.topic()
    [warning] = warnings(preflight(store, target))
    assert "timestamps and sizes of batches are an estimate" in warning


def test_figures_cover_only_the_range(store: MemoryStore) -> None:
    store.archive(5, batch(5, [NOW_MS + 5 * HOUR_MS]))
    chosen = ranges_of(store, offsets={TP: (2, 4)})
    [figures] = measure(cast("Store", store), chosen).values()
    assert (figures.oldest_ms, figures.newest_ms) == (NOW_MS - 80 * HOUR_MS, NOW_MS - 60 * HOUR_MS)


def test_damaged_object_makes_an_estimate_and_its_bits_are_no_timestamps(store: MemoryStore) -> None:
    [key] = [key for key in store.objects if key.endswith("3.kafka")]
    whole = bytearray(store.objects[key])
    whole[35] ^= 0x40  # the highest byte of the batch's greatest timestamp
    store.objects[key] = bytes(whole)
    [figures] = measure(cast("Store", store), ranges_of(store)).values()
    assert figures.is_estimate
    assert figures.newest_ms == NOW_MS - HOUR_MS


def test_base_timestamp_of_a_delete_horizon_and_of_append_time_is_no_message_time() -> None:
    store = MemoryStore()
    store.archive(
        0,
        batch(0, [NOW_MS - 9 * HOUR_MS], delete_horizon_ms=NOW_MS - 99 * HOUR_MS),
        batch(1, [NOW_MS - 98 * HOUR_MS], log_append_time_ms=NOW_MS - 8 * HOUR_MS),
        batch(2, [-1]),
    )
    [figures] = measure(cast("Store", store), ranges_of(store)).values()
    assert (figures.oldest_ms, figures.newest_ms) == (NOW_MS - 9 * HOUR_MS, NOW_MS - 8 * HOUR_MS)
