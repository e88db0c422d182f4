"""Errors of the scratch disk name the directory and are retriable."""

from __future__ import annotations

import errno
import pickle
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.io import load_file_io
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC

from waybill.base.errors import ScratchUnusable
from waybill.tables.iceberg.schemas import QUARANTINE_SCHEMA
from waybill.tables.partition.rows import QUARANTINE_ROWS
from waybill.tables.staging.file_writer import PartitionedWriter
from waybill.tables.staging.table_layout import TableLayout
from waybill.tables.staging.uploads import Uploads, scratch_directory


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory that Spark configures for temporary files."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    return tmp_path


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """Make the kernel refuse to write larger files, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_the_scratch_directory_is_created_below_sparks_and_removed(parent: Path) -> None:
    with scratch_directory() as scratch:
        assert scratch.parent == parent
        (scratch / "file").write_bytes(b"x")
    assert list(parent.iterdir()) == []


def test_a_full_disk_is_named_in_the_error(parent: Path) -> None:
    with (
        pytest.raises(
            ScratchUnusable, match=rf"scratch directory {parent} cannot be written: .*SPARK_LOCAL_DIRS"
        ) as raised,
        scratch_directory() as scratch,
        file_size_limit(100),
    ):
        (scratch / "file").write_bytes(bytes(200))
    assert raised.value.retriable
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    assert list(parent.iterdir()) == []


def test_open_files_are_closed_and_removed_on_a_full_disk(parent: Path) -> None:
    """The Parquet footer does not fit on the disk either."""
    layout = TableLayout("q", f"{parent}/data", QUARANTINE_SCHEMA, UNPARTITIONED_PARTITION_SPEC, None, {})
    record = {"topic": "t", "partition": 0, "kafka_timestamp": None, "key": None, "headers": [], "value": b"v" * 99}
    record |= {"reason": "x", "parser": "json", "quarantined_at": datetime(2026, 1, 1, tzinfo=UTC), "generation": 1}
    rows = pa.RecordBatch.from_pylist([{**record, "offset": n} for n in range(100)], schema=QUARANTINE_ROWS)
    uploads = Uploads(load_file_io({}, str(parent)))

    def write(scratch: Path) -> None:
        writer = PartitionedWriter(
            layout, QUARANTINE_ROWS, memory_bytes=1000, scratch=scratch, uploads=uploads, name="plan"
        )
        try:
            writer.add(rows)
            writer.finish()
        finally:
            writer.abandon()
            uploads.discard()
            uploads.close()

    with pytest.raises(ScratchUnusable), scratch_directory() as scratch, file_size_limit(100):
        write(scratch)
    assert list(parent.iterdir()) == []


def test_a_missing_directory_is_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/nowhere/at/all")
    with pytest.raises(ScratchUnusable, match="scratch directory /nowhere/at/all"), scratch_directory():
        pass


@pytest.mark.parametrize(
    "error", [OSError("AWS Error NETWORK_CONNECTION"), FileNotFoundError(errno.ENOENT, "no bucket")]
)
def test_other_errors_are_not_translated(error: OSError) -> None:
    with pytest.raises(type(error)) as raised, scratch_directory():
        raise error
    assert raised.value is error
