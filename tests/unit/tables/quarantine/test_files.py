"""Errors of damaged, missing and unreachable files name the table and the remedy, which PyIceberg's errors do not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import load_catalog
from pyiceberg.io.pyarrow import PyArrowFile
from pyiceberg.table import Table

from waybill.base.errors import CommitConflict, DamagedFile, StoreUnavailable
from waybill.tables.iceberg.schemas import QUARANTINE_SCHEMA
from waybill.tables.partition.rows import QUARANTINE_ROWS
from waybill.tables.quarantine.files import plan_files, read_file, translate_file_errors


class _Named:
    def name(self) -> tuple[str, str]:
        return "analytics", "flights_quarantine"


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (
            FileNotFoundError("x.parquet"),
            CommitConflict,
            r"flights_quarantine no longer exists \(x\.parquet\).*Run again",
        ),
        (OSError("no answer"), StoreUnavailable, r"analytics\.flights_quarantine cannot be reached: no answer"),
    ],
)
def test_errors_of_s3_name_the_table(error: OSError, raised: type[Exception], message: str) -> None:
    with pytest.raises(raised, match=message), translate_file_errors(cast("Any", _Named())):
        raise error


def rows(count: int) -> pa.Table:
    """Return enough rows for every page to be compressed."""
    columns = {
        "topic": ["flights"] * count,
        "partition": [0] * count,
        "offset": range(count),
        "kafka_timestamp": [None] * count,
        "key": [b"key-%d" % n for n in range(count)],
        "headers": [[]] * count,
        "value": [b"%d" % (n * 7919 % 10007) for n in range(count)],
        "reason": ["not_json"] * count,
        "parser": ["json"] * count,
        "quarantined_at": [datetime(2026, 1, 1, tzinfo=UTC)] * count,
        "generation": [1] * count,
    }
    return pa.table({f.name: pa.array(columns[f.name], f.type) for f in QUARANTINE_ROWS}, schema=QUARANTINE_ROWS)


@pytest.fixture(scope="module")
def quarantine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    """Yield a quarantine with one file on the local disk."""
    folder = tmp_path_factory.mktemp("warehouse")
    catalog = load_catalog("test", type="sql", uri=f"sqlite:///{folder}/c.db", warehouse=f"file://{folder}")
    catalog.create_namespace("analytics")
    table = catalog.create_table("analytics.flights_quarantine", QUARANTINE_SCHEMA)
    table.append(rows(3000))
    yield table
    catalog.close()


@settings(max_examples=60, deadline=None)
@given(at=st.floats(0, 1, exclude_max=True), how=st.sampled_from(["cut", "zeroes", "bit"]), bit=st.integers(0, 7))
def test_a_damaged_file_is_named_or_read_unchanged(quarantine: Table, at: float, how: str, bit: int) -> None:
    """Arrow raises errors of three types, one of which it also raises when S3 does not answer."""
    (file,) = plan_files(quarantine, "offset >= 0")
    path = Path(file.file.file_path.removeprefix("file://"))
    good = path.read_bytes()
    data, place = bytearray(good), int(at * len(good))
    if how == "cut":
        del data[place:]
    elif how == "zeroes":
        data[place : place + 64] = bytes(len(data[place : place + 64]))
    else:
        data[place] ^= 1 << bit
    try:
        path.write_bytes(data)
        with suppress(DamagedFile):
            for _ in read_file(quarantine, file):
                pass
        path.write_bytes(good[: len(good) // 2])
        with pytest.raises(DamagedFile, match=r"analytics\.flights_quarantine: its file .*parquet is damaged: "):
            list(read_file(quarantine, file))
    finally:
        path.write_bytes(good)


def test_a_missing_file_is_not_reported_as_damaged(quarantine: Table) -> None:
    (file,) = plan_files(quarantine, "offset >= 0")
    path = Path(file.file.file_path.removeprefix("file://"))
    aside = path.rename(path.with_suffix(".aside"))
    try:
        with pytest.raises(CommitConflict, match="no longer exists"), translate_file_errors(quarantine):
            list(read_file(quarantine, file))
    finally:
        aside.rename(path)


@pytest.mark.parametrize(
    "message", ["AWS Error NETWORK_CONNECTION during GetObject", "Expected to be able to read 9 bytes"]
)
def test_an_unreachable_s3_is_not_reported_as_damage(
    quarantine: Table, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(message)

    (file,) = plan_files(quarantine, "offset >= 0")
    monkeypatch.setattr(PyArrowFile, "open", fail)
    with pytest.raises(StoreUnavailable, match="cannot be reached"), translate_file_errors(quarantine):
        list(read_file(quarantine, file))
