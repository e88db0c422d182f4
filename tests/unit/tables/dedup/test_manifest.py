"""Index manifests: saved by several processes, loaded, and skipped when they are not usable."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from index_files import MemoryFiles, entry

from waybill.base.errors import CommitConflict
from waybill.config.names import key_index_manifest_key, key_index_version_of
from waybill.tables.dedup.index.manifest import (
    IndexIdentity,
    LoadedManifest,
    Manifest,
    load_manifest,
    save_manifest,
    update_manifest,
)
from waybill.tables.iceberg.dedup import NO_HORIZON_MS

INDEX = "index/"
IDENTITY = IndexIdentity("00000000-0000-0000-0000-000000000001", ("message_id",), 16)
EMPTY = Manifest.empty(IDENTITY)


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


def with_run(name: str, sequence: int = 1, **fields: object) -> Manifest:
    manifest = EMPTY.with_sweep(0, sequence, 77, [entry(name, **fields)], NO_HORIZON_MS)  # type: ignore[arg-type]
    assert manifest is not None
    return manifest


def test_load_returns_none_without_a_manifest(files: MemoryFiles) -> None:
    assert load_manifest(files, INDEX, IDENTITY) == LoadedManifest(None, 0)


def test_load_returns_the_saved_manifest(files: MemoryFiles) -> None:
    saved = save_manifest(files, INDEX, 0, with_run("a", arrived=(5, 9)))
    assert saved is not None
    assert saved.version == 1
    assert load_manifest(files, INDEX, IDENTITY) == LoadedManifest(saved, 1)
    assert list(files.contents) == [key_index_manifest_key(INDEX, 1)]
    assert saved.size_bytes == 22_000
    assert saved.keys == 1000


def test_stored_paths_are_relative_to_the_index() -> None:
    text = with_run("a").to_json(INDEX)
    assert b"index/runs" not in text
    assert Manifest.from_json("moved/", 1, text).runs[0].path == "moved/runs/a.parquet"


def test_second_save_of_a_version_is_refused(files: MemoryFiles) -> None:
    first, second = with_run("a"), with_run("b")
    saved = save_manifest(files, INDEX, 0, first)
    assert saved is not None
    assert save_manifest(files, INDEX, 0, second) is None
    assert load_manifest(files, INDEX, IDENTITY).manifest == saved


def test_own_earlier_save_whose_response_was_lost_counts(files: MemoryFiles) -> None:
    assert save_manifest(files, INDEX, 0, with_run("a")) == save_manifest(files, INDEX, 0, with_run("a"))


@pytest.mark.parametrize(
    "other",
    [
        replace(IDENTITY, unique="00000000-0000-0000-0000-000000000002"),
        replace(IDENTITY, key=("topic", "message_id")),
        replace(IDENTITY, buckets=32),
        replace(IDENTITY, hash="md5"),
    ],
)
def test_manifest_with_another_identity_is_skipped_and_logged_once(
    files: MemoryFiles, other: IndexIdentity, caplog: pytest.LogCaptureFixture
) -> None:
    save_manifest(files, INDEX, 0, with_run("a"))
    save_manifest(files, INDEX, 1, replace(EMPTY, identity=other))
    assert load_manifest(files, INDEX, other).manifest == replace(EMPTY, identity=other, version=2)
    found = load_manifest(files, INDEX, IDENTITY)
    assert (found.manifest, found.newest_version) == (replace(with_run("a"), version=1), 2)
    assert "manifest 2 is skipped" in caplog.text
    assert str(other) in caplog.text
    save_manifest(files, INDEX, 2, replace(EMPTY, identity=other))
    caplog.clear()
    assert load_manifest(files, INDEX, IDENTITY).manifest == found.manifest
    assert [record.getMessage().split(": of ")[0] for record in caplog.records] == [
        f"key index {INDEX}: manifest 3 is skipped"  # so is 2, for the same reason
    ]


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"[]",
        b'{"v": 1}',
        b'{"v": 99, "index": {}}',
        with_run("a").to_json(INDEX)[:-20],
        with_run("a").to_json(INDEX).replace(b'"covers":1', b'"covers":2'),
        with_run("a").to_json(INDEX).replace(b"20000", b"20001"),
    ],
)
def test_damaged_manifest_is_skipped_and_the_one_before_is_loaded(
    files: MemoryFiles, damaged: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    saved = save_manifest(files, INDEX, 0, with_run("a"))
    files.create_if_absent(key_index_manifest_key(INDEX, 2), damaged)
    caplog.set_level(logging.WARNING)
    assert load_manifest(files, INDEX, IDENTITY) == LoadedManifest(saved, 2)
    assert "manifest 2 is skipped, it cannot be read" in caplog.text
    third = update_manifest(files, INDEX, IDENTITY, lambda found: found)
    assert third is not None
    assert third.version == 3


def test_sweep_is_added_only_to_a_manifest_that_covers_all_rows_before_it() -> None:
    one = with_run("a", sequence=3)
    assert one.covers == 3
    assert one.covers_snapshot == 77
    assert one.with_sweep(3, 3, 78, [entry("b")], 0) is None, "a rival has added the same"
    assert one.with_sweep(4, 5, 78, [entry("b")], 0) is None, "the rows of sequence number 4 are missing"
    two = one.with_sweep(2, 6, 78, [entry("b", sequences=(4, 4))], NO_HORIZON_MS)
    assert two is not None
    assert [(run.first_sequence, run.last_sequence) for run in two.runs] == [(1, 3), (3, 6)]


def test_horizon_never_falls_and_runs_below_it_are_dropped() -> None:
    both = with_run("a", arrived=(0, 9)).with_sweep(1, 2, 78, [entry("b", arrived=(5, 20))], 10)
    assert both is not None
    assert both.horizon_ms == 10
    assert [run.path for run in both.runs] == ["index/runs/b.parquet"]
    assert both.with_horizon(3) == both
    assert both.with_horizon(21).runs == ()


def test_merged_run_replaces_exactly_the_runs_it_was_made_of() -> None:
    a, b, c = entry("a"), entry("b"), entry("c")
    manifest = replace(EMPTY, runs=(a, b, c))
    result = entry("d")
    merged = manifest.with_merged((a, b), result)
    assert merged is not None
    assert merged.runs == (c, result)
    assert merged.with_merged((a, b), entry("e")) is None, "a rival has merged them"
    assert merged.with_merged((b, c), entry("e")) is None, "one of them has left the manifest"
    without_runs = merged.with_merged((c, result), None)
    assert without_runs is not None
    assert without_runs.runs == ()


def test_update_repeats_the_change_after_a_rivals_save(files: MemoryFiles) -> None:
    seen: list[int] = []

    def change(found: Manifest | None) -> Manifest:
        manifest = found or EMPTY
        seen.append(manifest.version)
        if manifest.version < 2:  # a rival comes before us, twice
            save_manifest(files, INDEX, manifest.version, replace(manifest, covers=manifest.covers + 10))
        return replace(manifest, covers=manifest.covers + 1)

    saved = update_manifest(files, INDEX, IDENTITY, change)
    assert saved is not None
    assert seen == [0, 1, 2]
    assert (saved.version, saved.covers) == (3, 21)
    assert update_manifest(files, INDEX, IDENTITY, lambda _: None) is None
    assert load_manifest(files, INDEX, IDENTITY).newest_version == 3


def test_update_raises_after_too_many_rival_saves(files: MemoryFiles) -> None:
    def change(found: Manifest | None) -> Manifest:
        manifest = found or EMPTY
        save_manifest(files, INDEX, manifest.version, replace(manifest, covers=manifest.covers + 10))
        return manifest

    with pytest.raises(CommitConflict, match="key index index/: 10 manifests were refused"):
        update_manifest(files, INDEX, IDENTITY, change)


def test_version_is_parsed_from_the_object_key() -> None:
    key = key_index_manifest_key("a/dedup/s/1/u/", 12)
    assert key == "a/dedup/s/1/u/manifests/00000000000000000012.json"
    assert key_index_version_of(key) == 12
    assert key_index_version_of(key + ".tmp") is None
    assert key_index_version_of("a/manifests/99999999999999999999.json") is None
