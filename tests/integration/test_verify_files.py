"""`waybill verify` over a `files` sink: what is sound is said to be, and each thing that is wrong is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from files_scenes import finalize_at, key_of, ledger, markers, moment, root
from partition_scenes import Scene, junk

from waybill.names import TopicPartition
from waybill.records.encode import Record
from waybill.verify import Report, verify_stream

pytestmark = pytest.mark.integration

TP0, TP1 = TopicPartition("flights", 0), TopicPartition("flights", 1)
FORMATS = ["parquet", "sequencefile", "text", {"name": "text", "compression": "gzip"}]
MakeScene = Callable[..., Scene]


class Quiet:
    def begin(self, what: str, total: int) -> None: ...

    def advance(self, steps: int) -> None: ...


def verify(scene: Scene, **options: Any) -> Report:
    return verify_stream(
        "flights",
        scene.stream,
        store=scene.store,
        committed=lambda _: None,
        known=(),
        catalog=scene.catalog,
        listener=Quiet(),
        **options,
    )


def fill(make_scene: MakeScene, format_: Any) -> Scene:
    scene = make_scene(partition_by="hour", sink={"name": "files", "format": format_})
    scene.put(TP0, [moment(n, n / 10) for n in range(25)])
    scene.put(TP0, [junk(25), moment(26, 2.6), Record(27, int(moment(0, 2.6).timestamp_ms), b"key", None)])
    scene.put(TP1, [moment(n, 1.5) for n in range(100, 120)])
    scene.run()
    scene.put(TP1, [moment(120, 0.5, 3)])
    scene.run()
    return scene


def faults(report: Report) -> list[str]:
    """Those of the tables and files: the scenes have no committed offsets."""
    return [str(fault) for fault in report.faults if fault.kind != "committed"]


@pytest.mark.parametrize("format_", FORMATS, ids=str)
@pytest.mark.parametrize("window_offsets", [7, 1 << 20])
def test_what_is_sound(make_scene: MakeScene, format_: Any, window_offsets: int) -> None:
    scene = fill(make_scene, format_)
    scene.put(TP0, [moment(28, 3)])
    report = verify(scene, window_offsets=window_offsets)
    assert faults(report) == []
    quarantined = 2 if "text" in str(format_) else 1
    figures = report.figures
    assert (figures.rows, figures.quarantine, figures.waiting, figures.messages) == (
        49 - quarantined,
        quarantined,
        1,
        50,
    )


@pytest.mark.parametrize("format_", FORMATS[:3], ids=str)
def test_a_file_that_is_gone_or_cut(make_scene: MakeScene, format_: Any) -> None:
    scene = fill(make_scene, format_)
    key = key_of(ledger(scene)[0])
    content = scene.store.read(key)
    scene.store.remove(key)
    found = faults(verify(scene))
    assert any(text.startswith("unreadable: ") and f"({key})" in text for text in found)
    scene.store.create_if_absent(key, content[:-10])
    found = faults(verify(scene))
    assert any("not of the size that the ledger says" in text for text in found)


@pytest.mark.parametrize("format_", ["sequencefile", "text"])
def test_a_file_of_other_bytes_of_the_same_size(make_scene: MakeScene, format_: Any) -> None:
    scene = fill(make_scene, format_)
    key = key_of(ledger(scene)[0])
    content = scene.store.read(key)
    scene.store.remove(key)
    scene.store.create_if_absent(key, content.replace(b'"id-1"', b'"id-9"'))
    assert any("SHA-256" in text for text in faults(verify(scene)))


@pytest.mark.parametrize("format_", FORMATS[:3], ids=str)
def test_rows_that_are_lost_or_repeated(make_scene: MakeScene, format_: Any) -> None:
    """The ledger loses the rows of a run, and gets those of another twice."""
    scene = fill(make_scene, format_)
    first, second = sorted(scene.table.scan().plan_files(), key=lambda task: -task.file.record_count)
    with scene.table.transaction() as transaction, transaction.update_snapshot().overwrite() as overwrite:
        overwrite.delete_data_file(second.file)
    report = verify(scene)
    assert report.figures.lost == 1
    assert faults(report)[0].startswith("lost: flights/1 offset 120: ")
    scene.table.add_files([first.file.file_path], check_duplicate_files=False)
    assert verify(scene).figures.repeated + verify(scene).figures.foreign >= 46


def test_what_lies_in_a_final_hour_and_is_not_listed(make_scene: MakeScene) -> None:
    scene = fill(make_scene, "parquet")
    finalize_at(scene, 10, {TP0: 28, TP1: 121})
    hours = sorted(markers(scene))
    assert len(hours) == 3
    assert faults(verify(scene)) == []
    scene.store.create_if_absent(f"{root(scene)}/{hours[0]}/1_5_00000000000000000000.parquet", b"x")
    scene.store.create_if_absent(f"{root(scene)}/flights/dt=2024-01-01/hr=00/1_5_00000000000000000000.parquet", b"x")
    (fault,) = faults(verify(scene))
    assert fault.startswith("foreign: is in flights/dt=2023-12-25/hr=00, which is final, and the ledger does not")
