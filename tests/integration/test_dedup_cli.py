"""`waybill dedup …` as a user runs it, and the alert about the window."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from archived_stream import Ran, waybill
from partition_scenes import DAY_MS, Scene, event

from waybill.base.errors import ConfigError, WindowShrunk
from waybill.config.models import Config
from waybill.config.names import TopicPartition
from waybill.records.batches.encode import Record
from waybill.tables.dedup.execute import InThisProcess
from waybill.tables.dedup.key_index import merge_index
from waybill.tables.dedup.key_lookup import find_kept_row
from waybill.tables.dedup.status import check_window
from waybill.tables.dedup.sweep import run_sweep
from waybill.watch.trace import find_places, open_services, trace_message

pytestmark = pytest.mark.integration

MakeScene = Callable[..., Scene]
TP = TopicPartition("flights", 0)
HOUR_MS = 3_600_000
DEDUP = {"window": "2d", "floor": "1d"}


def repeated(offset: int, repeats: int, time_ms: int) -> Record:
    """Return the message of an earlier offset, sent again."""
    first = event(repeats, time_ms)
    return Record(offset, time_ms + 5, first.key, first.value)


def put(scene: Scene, first: int, first_day: int) -> None:
    """Archive and partition 24 messages, one an hour. The last four repeat the four before them."""
    start = first_day * DAY_MS
    fresh = [event(first + n, start + n * HOUR_MS) for n in range(20)]
    scene.put(TP, fresh + [repeated(first + n, first + n - 4, start + n * HOUR_MS) for n in range(20, 24)])
    scene.run()


@pytest.fixture
def scene(make_scene: MakeScene) -> Scene:
    made = make_scene(dedup=DEDUP, columns={"id": "string"})
    put(made, 0, 0)
    return made


@pytest.fixture
def command(scene: Scene, tmp_path: Path) -> Callable[..., Ran]:
    """Run `waybill dedup …` with the scene's config, or with the given one."""
    file = tmp_path / "streams.yaml"

    def run(*arguments: str, config: Config | None = None) -> Ran:
        file.write_text(yaml.safe_dump((config or scene.config).model_dump(mode="json")))
        return waybill("dedup", *arguments, WAYBILL_CONFIG=str(file))

    return run


def with_dedup(scene: Scene, **changes: Any) -> Config:
    return scene.with_stream(dedup={**DEDUP, **changes})


def sweep(scene: Scene) -> None:
    run_sweep(scene.config, "flights", InThisProcess())


def test_status_before_and_after_a_sweep(scene: Scene, command: Callable[..., Ran]) -> None:
    [before] = command("status", "--json").document
    assert (before["swept_snapshot"], before["rows"], before["index"]) == (None, 0, None)
    assert before["behind"] == {"snapshots": 1, "rows": 24}
    assert command("rebuild", "flights").out == "flights: there is no key index yet: the first sweep builds it\n"

    sweep(scene)
    put(scene, 24, 1)
    [status] = command("status", "flights", "--json").document
    _empty, first, *_ = scene.table.metadata.snapshots
    assert status["swept_snapshot"] == first.snapshot_id
    assert (status["rows"], status["duplicates"]) == (20, 4)
    assert status["behind"] == {"snapshots": 1, "rows": 24}
    assert status["newest"] == "1970-01-01T23:00:00.005000+00:00"
    assert status["window"]["effective_seconds"] == 2 * 86_400
    assert (status["index"]["keys"], status["index"]["missing_rows"], status["alert"]) == (20, 0, None)
    hours = [f"1970-01-01T{hour}:00:00+00:00" for hour in (20, 21, 22, 23)]
    assert [(c["hour"], c["topic"], c["duplicates"]) for c in status["counted"]] == [(h, "flights", 1) for h in hours]

    sweep(scene)
    ran = command("status", "--last", "2h")
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0].startswith("flights: 40 rows in tests.flights_")
    assert lines[0].endswith(", 8 duplicates (16.67% of all)")
    assert lines[1].endswith("; nothing to sweep")
    assert [line.split()[0] for line in lines[6:]] == [f"1970-01-02T{hour}:00:00Z" for hour in (21, 22, 23)]
    assert "flights: 3 duplicates in the 2h before 1970-01-02T23:00:00Z" in ran.err


@pytest.mark.deep
def test_removed_index_is_reported_and_can_be_rebuilt(scene: Scene, command: Callable[..., Ran]) -> None:
    sweep(scene)
    for key in scene.keys("dedup/"):
        scene.store.remove(key)
    ran = command("status")
    assert "  index   none yet: the next sweep builds it from the unique rows" in ran.out.splitlines()
    assert merge_index(scene.config, "flights") is None
    assert command("rebuild", "flights", "--json").document["index"]["keys"] == 20
    assert "  index   20 keys in " in command("status").out
    assert command("merge", "flights").out.startswith("flights: the key index has 20 keys in ")


def test_merge_combines_eight_sorted_runs_or_rebuilds_a_damaged_index(make_scene: MakeScene) -> None:
    scene = make_scene(dedup={**DEDUP, "buckets": 1})
    for first in range(0, 9 * 24, 24):
        put(scene, first, 0)  # the later ones arrive at the same times as the first
        sweep(scene)
    before = sorted(key for key in scene.keys("dedup/") if key.endswith(".parquet"))
    assert len(before) == 9
    merged = merge_index(scene.config, "flights")
    assert merged is not None
    assert (merged.keys, len(merged.runs)) == (9 * 20, 2)

    [newest] = [key for key in scene.keys("dedup/") if key.endswith(f"{merged.version:020d}.json")]
    scene.store.remove(newest)
    scene.store.remove(before[-1])  # one of the runs that have to be merged again
    merged = merge_index(scene.config, "flights")
    assert merged is not None
    assert (merged.keys, len(merged.runs)) == (9 * 20, 1)


@pytest.mark.deep
def test_window_below_the_floor_raises_an_alert(
    scene: Scene, command: Callable[..., Ran], caplog: pytest.LogCaptureFixture
) -> None:
    assert check_window(scene.config, "flights") is None
    sweep(scene)
    with caplog.at_level(logging.INFO, "waybill.tables.dedup"):
        window = check_window(scene.config, "flights")
    assert window is not None
    assert window.is_whole
    assert "flights: sweeps compare keys over 2d of 2d (floor 1d); the key index has 20 keys in " in caplog.text

    # After `window` was raised, the effective window grows with time. Only a window below the floor is an alert.
    raised = check_window(with_dedup(scene, window="9d"), "flights")
    assert raised is not None
    assert not raised.is_whole
    config = with_dedup(scene, window="9d", floor="8d")
    with pytest.raises(
        WindowShrunk, match=r"^flights: sweeps compare keys over 2d, less than dedup\.floor: dedup\.window is 9d"
    ):
        check_window(config, "flights")
    ran = command("status", config=config)
    assert ran.code == 0
    assert "alert: flights: sweeps compare keys over 2d, less than" in ran.err


def test_commands_refuse_a_stream_without_dedup(make_scene: MakeScene, tmp_path: Path) -> None:
    scene = make_scene()
    file = tmp_path / "streams.yaml"
    file.write_text(yaml.safe_dump(scene.config.model_dump(mode="json")))
    for arguments in (("status", "flights"), ("rebuild", "flights"), ("merge", "flights")):
        ran = waybill("dedup", *arguments, WAYBILL_CONFIG=str(file))
        assert (ran.code, ran.out) == (1, "")
        assert (
            ran.err
            == "error: stream 'flights' has no dedup: add a section `dedup` to it in the config ({} is enough)\n"
        )
    assert waybill("dedup", "status", "--json", WAYBILL_CONFIG=str(file)).document == []
    ran = waybill("dedup", "status", WAYBILL_CONFIG=str(file))
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.startswith("no stream has dedup: ")
    assert check_window(scene.config, "flights") is None
    with pytest.raises(ConfigError, match="has no dedup"):
        merge_index(scene.config, "flights")


def test_message_id_is_traced_by_the_key_index_and_without_one_by_the_tables(scene: Scene) -> None:
    sweep(scene)
    with open_services(scene.config) as services:
        row = trace_message(services, scene.config, "flights", TP, 16).row
        assert row is not None
        message_id = row["message_id"]
        assert find_kept_row(scene.config, "flights", [message_id], services) == (TP, 16)
        assert find_kept_row(scene.config, "flights", ["never sent"], services) is None
        assert find_places(services, scene.config, "flights", message_id) == [(TP, 16), (TP, 20)]
        for key in scene.keys("dedup/"):
            scene.store.remove(key)
        assert find_kept_row(scene.config, "flights", [message_id], services) is None
        assert find_places(services, scene.config, "flights", message_id) == [(TP, 16), (TP, 20)]
