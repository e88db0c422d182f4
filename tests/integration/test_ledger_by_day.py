"""The ledger by day on the real stack: what each day archived, and where it went."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from archived_stream import ArchivedStream, remove_rows
from ingest_scenes import Cluster

from devstack import Stack
from waybill.config.names import day_mark_key, day_of
from waybill.services.store import Store
from waybill.tables.dedup.execute import InThisProcess
from waybill.tables.dedup.sweep import run_sweep
from waybill.watch.promises.watch_run import run_watch

pytestmark = pytest.mark.integration

DAY_MS = 24 * 3_600_000
FIRST_MS = 1_790_000_000_000 // DAY_MS * DAY_MS + 70_000
"""Shortly after midnight, UTC."""


class Days(ArchivedStream):
    """A stream with dedup that is watched at times that the test chooses."""

    def __init__(self, directory: Path, topic: str, **settings: Any) -> None:
        super().__init__(directory, topic)
        self.directory = directory
        document = yaml.safe_load(self.file.read_text())
        document["streams"]["events"].update(settings or {"dedup": {}})
        self.file.write_text(yaml.safe_dump(document))

    def watch(self, now_ms: int) -> None:
        run_watch(self.config, now_ms=lambda: now_ms, directory=self.directory)

    def run(self, *, sweeps: bool = True) -> None:
        self.ingest()
        self.partition()
        if sweeps:
            run_sweep(self.config, "events", InThisProcess())

    def ledger(self, *options: str, code: int = 0) -> dict[str, Any]:
        ran = self.waybill("ledger", "events", "--json", *options)
        assert ran.code == code, ran.out + ran.err
        return dict(ran.document)


def sums(period: dict[str, Any]) -> tuple[int, ...]:
    """Return offsets, messages, rows, quarantined, waiting, unique and duplicate ones of all topic-partitions."""
    lines = period["topic_partitions"]
    log = [sum(line[name] for line in lines) for name in ("offsets", "messages")]
    tables = [sum(line["tables"][name] for line in lines) for name in ("rows", "quarantine", "waiting")]
    return (*log, *tables, *(sum(line["dedup"][name] for line in lines) for name in ("unique", "duplicates")))


@pytest.fixture
def days(stack: Stack, cluster: Cluster, tmp_path: Path, topic_name: str) -> Days:
    """Three days: 10 messages; 20 with 3 repeated and 4 that cannot be parsed; and 5 that are not partitioned."""
    stream = Days(tmp_path, topic_name)
    stream.produce_events(10)
    stream.run()
    stream.watch(FIRST_MS)
    stream.produce_events(13, first=10, partition=1)
    stream.produce_events(3, first=5)
    cluster.produce(stream.tp(), [(None, b"{")] * 4)
    stream.run()
    stream.watch(FIRST_MS + DAY_MS)
    stream.watch(FIRST_MS + DAY_MS + 60_000)
    stream.produce_events(5, first=100)
    stream.ingest()
    return stream


def test_each_day_balances_and_the_days_add_up_to_the_whole(days: Days) -> None:
    found = days.ledger("--by", "day")
    first, second = day_of(FIRST_MS), day_of(FIRST_MS + DAY_MS)
    assert [each["period"] for each in found["periods"]] == [f"before {first}", str(first), str(second)]
    assert [sums(each) for each in found["periods"]] == [
        (10, 10, 10, 0, 0, 10, 0),
        (20, 20, 16, 4, 0, 13, 3),
        (5, 5, 0, 0, 5, 0, 0),
    ]
    assert found["balanced"]

    printed = days.waybill("ledger", "events", "--by", "day").out
    line = next(line for line in printed.splitlines() if line.startswith(str(first)))
    assert line.split()[1:3] == ["20", "20"]
    assert "balanced" in printed


def test_a_range_of_days_is_one_line_for_each_topic_partition(days: Days) -> None:
    first = str(day_of(FIRST_MS))
    [period] = days.ledger("--since", first, "--until", first)["periods"]
    assert [line["messages"] for line in period["topic_partitions"]] == [7, 13]
    [rest] = days.ledger("--since", first)["periods"]
    assert sums(rest) == (25, 25, 16, 4, 5, 13, 3)
    refused = days.waybill("ledger", "events", "--since", "2026-02-01", "--until", "2026-01-01")
    assert refused.code == 1
    assert "--until 2026-01-01 is before --since 2026-02-01" in refused.err


def test_a_lost_row_is_an_imbalance_of_its_day_alone(days: Days) -> None:
    with days.tables() as tables:
        remove_rows(tables.main, 1, 6, 7)
    found = days.ledger("--by", "day", code=1)
    assert not found["balanced"]
    [imbalance] = found["imbalances"]
    assert "1 missing" in imbalance["what"]
    assert (imbalance["partition"], imbalance["first_offset"], imbalance["next_offset"]) == (1, 0, 13)
    before = str(day_of(FIRST_MS - DAY_MS))
    assert days.ledger("--by", "day", "--until", before)["balanced"]


def test_the_first_watch_of_a_day_stores_a_mark_and_a_mark_is_needed(
    stack: Stack, tmp_path: Path, topic_name: str
) -> None:
    stream = Days(tmp_path, topic_name)
    refused = stream.waybill("ledger", "events", "--by", "day")
    assert refused.code == 1
    assert "the first watch of a day stores where it begins" in refused.err
    stream.watch(FIRST_MS)
    with Store.of(stream.config.storage) as store:
        key = day_mark_key(store.prefix, day_of(FIRST_MS))
        stored = store.read(key)
        stream.produce_events(3)
        stream.ingest()
        stream.watch(FIRST_MS + 60_000)
        assert store.read(key) == stored
        assert not store.exists(day_mark_key(store.prefix, day_of(FIRST_MS + DAY_MS)))


def test_with_files_as_the_sink_the_tables_are_left_out_by_day(stack: Stack, tmp_path: Path, topic_name: str) -> None:
    stream = Days(tmp_path, topic_name, sink="files")
    stream.produce_events(10)
    stream.run(sweeps=False)
    stream.watch(FIRST_MS)
    found = stream.ledger("--by", "day")
    assert [line["tables"] for line in found["periods"][0]["topic_partitions"]] == [None]
    assert any("with sink: files, the offsets of rows are not recorded" in note for note in found["notes"])
