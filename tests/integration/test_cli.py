"""offsets, gaps, ls and cat against the real stack, run as a user runs them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from archived_stream import ArchivedStream, Ran, waybill, waybill_process

from devstack import Stack
from waybill.base.errors import ChainBroken, GenerationConflict, RetentionGap

pytestmark = pytest.mark.integration


@pytest.fixture
def stream(stack: Stack, tmp_path: Path, topic_name: str) -> ArchivedStream:
    return ArchivedStream(tmp_path, topic_name)


# --- offsets ----------------------------------------------------------------------------------------------------------


def test_offsets_shows_lag_and_state_before_and_after_an_ingest_run(stream: ArchivedStream) -> None:
    stream.produce_events(10)
    before = stream.waybill("offsets", "--json").document
    assert before == [
        {
            "stream": "events",
            "topic": stream.topic,
            "partition": partition,
            "committed_offset": None,
            "earliest_offset": 0,
            "end_offset": end,
            "lag": end,
            "state": "not started",
            "stop": None,
        }
        for partition, end in ((0, 10), (1, 0))
    ]
    stream.ingest()
    stream.produce_events(5, first=10)
    ran = stream.waybill("offsets", "--stream", "events")
    assert ran.code == 0, ran.err
    lines = [line.split() for line in ran.out.splitlines()]
    assert lines == [
        ["stream", "topic-partition", "committed", "end", "lag", "state"],
        ["events", f"{stream.topic}/0", "10", "15", "5", "ok"],
        ["events", f"{stream.topic}/1", "0", "0", "0", "ok"],
    ]


def test_offsets_shows_a_named_stop_in_the_state_and_one_closing_line(stream: ArchivedStream) -> None:
    stream.produce_events(10)
    stream.ingest()
    with stream.coordinator() as coordinator:
        coordinator.record_stop(stream.tp(), RetentionGap(stream.topic, 0, 10, 25))
    ran = stream.waybill("offsets")
    assert ran.code == 0
    assert "stopped: RetentionGap" in ran.out
    lines = ran.out.splitlines()
    assert lines[-1] == "1 topic-partition is stopped: `waybill gaps` shows why and what to do"
    (row, _) = stream.waybill("offsets", "--json").document
    assert row["state"] == "stopped: RetentionGap"
    assert row["stop"]["figures"]["earliest_offset"] == 25
    assert row["stop"]["message"].startswith(f"{stream.topic}/0: offsets 10–24 are gone from Kafka")


def test_gaps_prints_one_remedy_for_each_kind_of_stop(stream: ArchivedStream) -> None:
    stream.produce_events(10)
    stream.ingest()
    with stream.coordinator() as coordinator:
        for partition in (0, 1):
            coordinator.record_stop(stream.tp(partition), RetentionGap(stream.topic, partition, 10, 25))
    out = stream.waybill("gaps").out
    assert [line.split()[:4] for line in out.splitlines()[1:3]] == [
        ["events", f"{stream.topic}/{partition}", "RetentionGap", "15"] for partition in (0, 1)
    ]
    assert out.count("RetentionGap (2 topic-partitions): Kafka's retention deleted offsets") == 1
    assert out.count("waybill gaps accept") == 1
    assert f'    waybill gaps accept {stream.topic} 0 --reason "…"' in out.splitlines()
    assert "2 topic-partitions are stopped" in stream.waybill("offsets").out
    listed = stream.waybill("gaps", "--json").document["stops"]
    assert [stop["partition"] for stop in listed] == [0, 1]
    assert all("offsets 10–24 are gone from Kafka" in stop["message"] for stop in listed)


def test_gaps_prints_the_message_of_a_stop_whose_cause_varies(stream: ArchivedStream) -> None:
    with stream.coordinator() as coordinator:
        coordinator.record_stop(stream.tp(0), ChainBroken(f"{stream.topic}/0: no object holds 5–9", 5, 10))
        coordinator.record_stop(stream.tp(1), GenerationConflict(f"{stream.topic}/1: two formats. Do this."))
    lines = stream.waybill("gaps").out.splitlines()
    assert f"ChainBroken (1 topic-partition): {stream.topic}/0: no object holds 5–9" in lines
    assert "    waybill verify events --no-table" in lines
    assert f"GenerationConflict (1 topic-partition): {stream.topic}/1: two formats. Do this." in lines


def test_offsets_takes_a_lost_committed_offset_from_the_chain(stream: ArchivedStream) -> None:
    stream.produce_events(10)
    stream.ingest()
    with stream.coordinator() as coordinator:
        coordinator.session.client.delete(
            coordinator.session.full_path(coordinator.paths.committed_offset(stream.tp()))
        )
    (row, _) = stream.waybill("offsets", "--json").document
    assert (row["committed_offset"], row["lag"]) == (10, 0)
    assert row["state"] == "from the chain: ZooKeeper has no committed offset"


# --- ls ---------------------------------------------------------------------------------------------------------------


def test_ls_prints_a_row_for_each_object(stream: ArchivedStream) -> None:
    for first in (0, 10):
        stream.produce_events(10, first=first)
        stream.produce_events(4, partition=1, first=first)
        stream.ingest()
    ran = stream.waybill("ls", "events")
    assert ran.code == 0, ran.err
    first, *rows = [line.split() for line in ran.out.splitlines()]
    assert first == ["key", "from", "to", "offsets", "size", "modified"]
    assert [row[:4] for row in rows] == [
        [key, *figures]
        for key, figures in zip(
            [*stream.object_keys(0), *stream.object_keys(1)],
            (["0", "9", "10"], ["10", "19", "10"], ["0", "3", "4"], ["4", "7", "4"]),
            strict=True,
        )
    ]
    assert ran.err.startswith("4 objects, ")


@pytest.mark.parametrize(("suffix", "partitions"), [("", [0, 1]), ("/1", [1]), ("/7", [])])
def test_ls_filters_by_topic_or_topic_partition(stream: ArchivedStream, suffix: str, partitions: list[int]) -> None:
    stream.produce_events(3)
    stream.produce_events(3, partition=1)
    stream.ingest()
    found = stream.waybill("ls", "events", stream.topic + suffix, "--json").document
    assert [entry["partition"] for entry in found] == partitions
    assert all((entry["first_offset"], entry["next_offset"]) == (0, 3) for entry in found)
    assert all(entry["bytes"] > 100 and entry["modified"].endswith("Z") for entry in found)


def test_ls_works_without_zookeeper(stream: ArchivedStream) -> None:
    stream.produce_events(3)
    stream.ingest()
    environment = {"WAYBILL_CONFIG": str(stream.file), "AIRFLOW_CONN_ZOOKEEPER_DEFAULT": None}
    ran = waybill_process("ls", "events", "--json", **environment)
    assert (ran.code, ran.document[0]["next_offset"]) == (0, 3)
    assert "Reading the last object of each chain instead" in ran.err


# --- cat --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def one_object(stream: ArchivedStream) -> str:
    """Archive five messages, and return the key of their object."""
    producer = stream.producer()
    headers = [("a", b"1"), ("a", None), ("b", b"\xff")]
    producer.produce(stream.topic, b"{}", b"k0", 0, timestamp=1_357_016_400_120, headers=headers)
    producer.produce(stream.topic, b"\xff\x00", None, 0)
    producer.produce(stream.topic, None, b"k2", 0)
    producer.produce(stream.topic, b"", b"", 0)
    producer.produce(stream.topic, "zwölf".encode(), b"k4", 0)
    assert producer.flush(30) == 0
    stream.ingest()
    (key,) = stream.object_keys()
    return key


def test_cat_prints_every_message_as_json(stream: ArchivedStream, one_object: str) -> None:
    ran = stream.waybill("cat", one_object)
    assert ran.code == 0, ran.err
    messages = [json.loads(line) for line in ran.out.splitlines()]
    assert [message["offset"] for message in messages] == [0, 1, 2, 3, 4]
    assert [message["key"] for message in messages] == ["k0", None, "k2", "", "k4"]
    assert [message["value"] for message in messages] == ["{}", {"base64": "/wA="}, None, "", "zwölf"]
    assert messages[0]["timestamp"] == "2013-01-01T05:00:00.120Z"
    assert messages[0]["headers"] == [
        {"key": "a", "value": "1"},
        {"key": "a", "value": None},
        {"key": "b", "value": {"base64": "/w=="}},
    ]


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        (["--from", "2"], [2, 3, 4]),
        (["--to", "2"], [0, 1, 2]),
        (["--from", "1", "--to", "3", "--limit", "2"], [1, 2]),
        (["-n", "1"], [0]),
        (["--from", "99"], []),
    ],
)
def test_cat_prints_a_range_of_offsets(
    stream: ArchivedStream, one_object: str, options: list[str], offsets: list[int]
) -> None:
    ran = stream.waybill("cat", f"s3://waybill/{one_object}", *options)
    assert ran.code == 0, ran.err
    assert [json.loads(line)["offset"] for line in ran.out.splitlines()] == offsets


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("backup/none", "error: backup/none does not exist\n"),
        ("s3://no-such-bucket-here/backup/none", "error: bucket 'no-such-bucket-here'"),
    ],
)
def test_cat_of_a_missing_object_or_bucket_is_an_error(stack: Stack, key: str, message: str) -> None:
    ran = waybill("cat", key)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(message)


def test_cat_of_an_object_without_record_batches_is_an_error(stream: ArchivedStream) -> None:
    with stream.store() as store:
        store.create_if_absent(
            "notes.txt", b"these are no record batches; there are 61 bytes and more of them, though."
        )
    ran = stream.waybill("cat", "notes.txt")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("error: notes.txt, byte 0: ")


# --- services that do not answer --------------------------------------------------------------------------------------


UNUSED_ADDRESS = "127.0.0.1:1"
UNUSED_CONNECTION = '{"host": "127.0.0.1", "port": 1}'
UNREACHABLE = {
    "KAFKA": (UNUSED_CONNECTION, "offsets", f"Kafka at {UNUSED_ADDRESS}"),
    "ZOOKEEPER": (UNUSED_CONNECTION, "verify", f"ZooKeeper at {UNUSED_ADDRESS}"),
    "AWS": (
        '{"login": "a", "password": "b", "extra": '
        f'{{"endpoint_url": "http://{UNUSED_ADDRESS}", "region_name": "x"}}}}',
        "verify",
        f"bucket 'waybill' at http://{UNUSED_ADDRESS}",
    ),
}


def test_unreachable_service_is_one_line_on_stderr(stream: ArchivedStream) -> None:
    """One command for each service, in parallel: each tries for ten seconds."""

    def run(variable: str) -> Ran:
        value, command, _ = UNREACHABLE[variable]
        environment = {f"AIRFLOW_CONN_{variable}_DEFAULT": value, "WAYBILL_CONFIG": str(stream.file)}
        return waybill_process(command, **environment)

    with ThreadPoolExecutor(len(UNREACHABLE)) as pool:
        all_ran = dict(zip(UNREACHABLE, pool.map(run, UNREACHABLE), strict=True))
    for variable, ran in all_ran.items():
        assert (ran.code, ran.out) == (1, ""), variable
        assert ran.err.startswith(f"error: {UNREACHABLE[variable][-1]}")
        assert len(ran.err.splitlines()) == 1
