"""Manifests of the key index: read, passed over, and saved by many at once."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from index_files import MemoryFiles, entry

from waybill.dedup.candidates import UNBOUNDED_MS
from waybill.dedup.index.manifest import IndexOf, Loaded, Manifest, load, save_next, update
from waybill.errors import CommitConflict
from waybill.names import key_index_manifest_key, key_index_version_of

INDEX = "index/"
OF = IndexOf("00000000-0000-0000-0000-000000000001", ("message_id",), 16)
EMPTY = Manifest.empty(OF)


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


def with_run(name: str, sequence: int = 1, **fields: object) -> Manifest:
    manifest = EMPTY.with_rows(0, sequence, 77, [entry(name, **fields)], UNBOUNDED_MS)  # type: ignore[arg-type]
    assert manifest is not None
    return manifest


def test_no_manifest_is_not_an_error(files: MemoryFiles) -> None:
    assert load(files, INDEX, OF) == Loaded(None, 0)


def test_what_was_saved_is_loaded_again(files: MemoryFiles) -> None:
    saved = save_next(files, INDEX, 0, with_run("a", arrived=(5, 9)))
    assert saved is not None
    assert saved.version == 1
    assert load(files, INDEX, OF) == Loaded(saved, 1)
    assert list(files.contents) == [key_index_manifest_key(INDEX, 1)]
    assert saved.size_bytes == 22_000
    assert saved.keys == 1000


def test_paths_are_those_below_the_index_wherever_it_lies() -> None:
    text = with_run("a").to_json(INDEX)
    assert b"index/runs" not in text
    assert Manifest.from_json("moved/", 1, text).runs[0].path == "moved/runs/a.parquet"


def test_second_of_two_that_save_is_refused_and_the_first_one_counts(files: MemoryFiles) -> None:
    first, second = with_run("a"), with_run("b")
    saved = save_next(files, INDEX, 0, first)
    assert saved is not None
    assert save_next(files, INDEX, 0, second) is None
    assert load(files, INDEX, OF).manifest == saved


def test_own_earlier_try_whose_answer_was_lost_counts_as_saved(files: MemoryFiles) -> None:
    assert save_next(files, INDEX, 0, with_run("a")) == save_next(files, INDEX, 0, with_run("a"))


@pytest.mark.parametrize(
    "other",
    [
        replace(OF, unique="00000000-0000-0000-0000-000000000002"),
        replace(OF, key=("topic", "message_id")),
        replace(OF, buckets=32),
        replace(OF, hash="md5"),
    ],
)
def test_index_of_something_else_is_passed_over_with_the_reason(
    files: MemoryFiles, other: IndexOf, caplog: pytest.LogCaptureFixture
) -> None:
    save_next(files, INDEX, 0, with_run("a"))
    save_next(files, INDEX, 1, replace(EMPTY, of=other))
    assert load(files, INDEX, other).manifest == replace(EMPTY, of=other, version=2)
    found = load(files, INDEX, OF)
    assert (found.manifest, found.newest) == (replace(with_run("a"), version=1), 2)
    assert "manifest 2 is passed over" in caplog.text
    assert str(other) in caplog.text
    save_next(files, INDEX, 2, replace(EMPTY, of=other))
    caplog.clear()
    assert load(files, INDEX, OF).manifest == found.manifest
    assert [record.getMessage().split(": of ")[0] for record in caplog.records] == [
        f"key index {INDEX}: manifest 3 is passed over"  # 2 is as well, for the same reason
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
def test_damaged_manifest_is_passed_over_and_the_one_before_counts(
    files: MemoryFiles, damaged: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    saved = save_next(files, INDEX, 0, with_run("a"))
    files.create_if_absent(key_index_manifest_key(INDEX, 2), damaged)
    caplog.set_level(logging.WARNING)
    assert load(files, INDEX, OF) == Loaded(saved, 2)
    assert "manifest 2 is passed over, it cannot be read" in caplog.text
    third = update(files, INDEX, OF, lambda found: found)
    assert third is not None
    assert third.version == 3


def test_rows_are_added_by_whoever_has_all_that_is_before() -> None:
    one = with_run("a", sequence=3)
    assert one.covers == 3
    assert one.covers_snapshot == 77
    assert one.with_rows(3, 3, 78, [entry("b")], 0) is None, "a rival has added the same"
    assert one.with_rows(4, 5, 78, [entry("b")], 0) is None, "what sequence 4 brought is missing"
    two = one.with_rows(2, 6, 78, [entry("b", sequences=(4, 4))], UNBOUNDED_MS)
    assert two is not None
    assert [(run.first_sequence, run.last_sequence) for run in two.runs] == [(1, 3), (3, 6)]


def test_horizon_only_rises_and_runs_below_it_leave() -> None:
    both = with_run("a", arrived=(0, 9)).with_rows(1, 2, 78, [entry("b", arrived=(5, 20))], 10)
    assert both is not None
    assert both.horizon_ms == 10
    assert [run.path for run in both.runs] == ["index/runs/b.parquet"]
    assert both.above(3) == both
    assert both.above(21).runs == ()


def test_merged_run_takes_the_place_of_exactly_those_it_was_made_of() -> None:
    a, b, c = entry("a"), entry("b"), entry("c")
    manifest = replace(EMPTY, runs=(a, b, c))
    by = entry("d")
    merged = manifest.with_merged((a, b), by)
    assert merged is not None
    assert merged.runs == (c, by)
    assert merged.with_merged((a, b), entry("e")) is None, "a rival has merged them"
    assert merged.with_merged((b, c), entry("e")) is None, "one of them is not there any more"
    nothing_left = merged.with_merged((c, by), None)
    assert nothing_left is not None
    assert nothing_left.runs == ()


def test_change_is_made_again_on_what_a_rival_has_saved(files: MemoryFiles) -> None:
    seen: list[int] = []

    def change(found: Manifest | None) -> Manifest:
        manifest = found or EMPTY
        seen.append(manifest.version)
        if manifest.version < 2:  # a rival comes before us, twice
            save_next(files, INDEX, manifest.version, replace(manifest, covers=manifest.covers + 10))
        return replace(manifest, covers=manifest.covers + 1)

    saved = update(files, INDEX, OF, change)
    assert saved is not None
    assert seen == [0, 1, 2]
    assert (saved.version, saved.covers) == (3, 21)
    assert update(files, INDEX, OF, lambda _: None) is None
    assert load(files, INDEX, OF).newest == 3


def test_rivals_without_end_are_told(files: MemoryFiles) -> None:
    def change(found: Manifest | None) -> Manifest:
        manifest = found or EMPTY
        save_next(files, INDEX, manifest.version, replace(manifest, covers=manifest.covers + 10))
        return manifest

    with pytest.raises(CommitConflict, match="key index index/: 10 manifests were refused"):
        update(files, INDEX, OF, change)


def test_version_of_a_key() -> None:
    key = key_index_manifest_key("a/dedup/s/1/u/", 12)
    assert key == "a/dedup/s/1/u/manifests/00000000000000000012.json"
    assert key_index_version_of(key) == 12
    assert key_index_version_of(key + ".tmp") is None
    assert key_index_version_of("a/manifests/99999999999999999999.json") is None
