"""`waybill verify` of a `files` sink: a sound sink has no faults, and each kind of damage is one fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from files_scenes import finalize_at, inventory, key_of, markers, moment, root
from partition_scenes import Scene, junk

from waybill.config.names import BackupName, TopicPartition
from waybill.records.batches.encode import Record
from waybill.services.coordination import CommittedOffset
from waybill.watch.verify import VerifyReport, verify_stream

pytestmark = pytest.mark.integration

TP0, TP1 = TopicPartition("flights", 0), TopicPartition("flights", 1)
FORMATS = ["parquet", "sequencefile", "text", {"name": "text", "compression": "gzip"}]
MakeScene = Callable[..., Scene]


class Quiet:
    def begin(self, what: str, total: int) -> None: ...

    def advance(self, steps: int) -> None: ...


def verify(
    scene: Scene, read_committed: Callable[[TopicPartition], CommittedOffset | None] = lambda _: None, **options: Any
) -> VerifyReport:
    return verify_stream(
        "flights",
        scene.stream,
        store=scene.store,
        read_committed=read_committed,
        committed_tps=(),
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


def faults(report: VerifyReport) -> list[str]:
    """Return the faults of tables and files. Those of committed offsets are left out: the scenes have none."""
    return [str(fault) for fault in report.faults if fault.kind != "committed"]


@pytest.mark.parametrize("format_", FORMATS, ids=str)
@pytest.mark.parametrize("window_offsets", [7, 1 << 20])
def test_sound_sink_has_no_faults(make_scene: MakeScene, format_: Any, window_offsets: int) -> None:
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
def test_file_that_is_missing_or_truncated_is_one_fault(make_scene: MakeScene, format_: Any) -> None:
    scene = fill(make_scene, format_)
    key = key_of(inventory(scene)[0])
    content = scene.store.read(key)
    scene.store.remove(key)
    (fault,) = faults(verify(scene))
    assert fault.startswith("unreadable: ")
    assert f"({key})" in fault
    scene.store.create_if_absent(key, content[:-10])
    (fault,) = faults(verify(scene))
    assert "not of the size in the file inventory" in fault
    assert f"({key})" in fault


@pytest.mark.deep
@pytest.mark.parametrize("format_", ["sequencefile", "text"])
def test_file_with_other_bytes_of_the_same_size_is_found_by_its_hash(make_scene: MakeScene, format_: Any) -> None:
    scene = fill(make_scene, format_)
    key = key_of(inventory(scene)[0])
    content = scene.store.read(key)
    scene.store.remove(key)
    scene.store.create_if_absent(key, content.replace(b'"id-1"', b'"id-9"'))
    assert any("SHA-256" in text for text in faults(verify(scene)))


@pytest.mark.parametrize("format_", FORMATS[:3], ids=str)
def test_inventory_that_lost_or_repeats_entries_is_a_fault(make_scene: MakeScene, format_: Any) -> None:
    """The inventory loses the entries of one partition run, and gets those of another one twice."""
    scene = fill(make_scene, format_)
    first, second = sorted(scene.table.scan().plan_files(), key=lambda task: -task.file.record_count)
    with scene.table.transaction() as transaction, transaction.update_snapshot().overwrite() as overwrite:
        overwrite.delete_data_file(second.file)
    report = verify(scene)
    assert report.figures.lost == 1
    assert faults(report)[0].startswith("lost: flights/1 offset 120: ")
    scene.table.add_files([first.file.file_path], check_duplicate_files=False)
    assert verify(scene).figures.repeated + verify(scene).figures.foreign >= 46


def test_object_in_a_final_hour_that_the_inventory_does_not_list_is_a_fault(make_scene: MakeScene) -> None:
    scene = fill(make_scene, "parquet")
    finalize_at(scene, 10, {TP0: 28, TP1: 121})
    hours = sorted(markers(scene))
    assert len(hours) == 3
    assert faults(verify(scene)) == []
    scene.store.create_if_absent(f"{root(scene)}/{hours[0]}/1_5_00000000000000000000.parquet", b"x")
    scene.store.create_if_absent(f"{root(scene)}/flights/dt=2024-01-01/hr=00/1_5_00000000000000000000.parquet", b"x")
    (fault,) = faults(verify(scene))
    assert fault.startswith(
        "foreign: is in flights/dt=2023-12-25/hr=00, which is final, and the file inventory does not"
    )


@pytest.mark.deep
@pytest.mark.parametrize("format_", FORMATS[:3], ids=str)
def test_deleted_backup_object_is_one_fault_with_its_rows_as_effects(make_scene: MakeScene, format_: Any) -> None:
    scene = fill(make_scene, format_)
    scene.store.remove(BackupName("flights", 1, 1, 120).key(scene.store.prefix))
    report = verify(scene, read_committed=lambda tp: CommittedOffset(121) if tp == TP1 else None)
    (fault,) = [fault for fault in report.faults if fault.kind != "committed"]
    assert (fault.kind, fault.tp, fault.first_offset, fault.next_offset) == ("missing", TP1, 120, 121)
    assert [(str(effect.kind), effect.rows) for effect in fault.affects] == [("progress", None), ("rows", 1)]
