"""`parts`: what a task does, each step alone over the same messages, and the task as a whole; one thread, one core."""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from _report import Row, peak_rss_bytes

from _partition.archive import PARTITIONS, config, keys_of, put, remove, store_of
from _partition.section import MIB, Case, Measured, Section, show
from _partition.task import ONE_TASK, on_one_core, partition_here, run_task_measured, whole_task

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from waybill.records.framing import Frame

__all__ = ["PARTS"]


def part(name: str, prepare_part: Callable[[str], Callable[[], tuple[int, int]]]) -> Case:
    """One step. What is prepared gives messages and bytes."""

    def prepare(_: argparse.Namespace) -> Callable[[], Measured]:
        import pyarrow as pa

        on_one_core()
        pa.set_io_thread_count(1)
        work = prepare_part("parts")
        work()  # compiled, imported, connected

        def run() -> Measured:
            cpu, wall = time.process_time(), time.perf_counter()
            messages, size = work()
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            return Measured(messages, size, wall, cpu, peak_rss_bytes())

        return run

    return Case(name, "", prepare)


def read_part(what: str) -> Callable[[], tuple[int, int]]:
    """The objects from S3, a megabyte at a time, and nothing done with them."""
    store, keys = store_of(config(what)), keys_of(what)

    def work() -> tuple[int, int]:
        size = 0
        for key in keys:
            with store.open(key) as stream:
                while piece := stream.read(MIB):
                    size += len(piece)
        return 0, size

    return work


def frames_of(what: str) -> Iterator[Frame]:
    from waybill.records.framing import frames

    with store_of(config(what)) as store:
        for key in keys_of(what):
            yield from frames(store.read(key), where=key)


def decompress_part(what: str) -> Callable[[], tuple[int, int]]:
    """Every batch's records section, by cramjam, into memory that is there."""
    from waybill.records import HEADER_BYTES
    from waybill.records.compression import decompress_into

    found, room = list(frames_of(what)), memoryview(bytearray(4 * MIB))

    def work() -> tuple[int, int]:
        messages = size = 0
        for frame in found:
            messages += frame.header.record_count
            size += decompress_into(frame.header.codec, frame.data[HEADER_BYTES:], room)
        return messages, size

    return work


def decode_part(what: str) -> Callable[[], tuple[int, int]]:
    """The same batches uncompressed: CRC, walk the records, copy them into Arrow."""
    from waybill.records import HEADER_BYTES, Codec
    from waybill.records.compression import decompress_into
    from waybill.records.decode import decode
    from waybill.records.framing import pack_batch

    room, batches = memoryview(bytearray(4 * MIB)), []
    for frame in frames_of(what):
        size = decompress_into(frame.header.codec, frame.data[HEADER_BYTES:], room)
        batches.append(pack_batch(frame.header._replace(attributes=int(Codec.NONE)), bytes(room[:size])))
    content = b"".join(batches)

    def work() -> tuple[int, int]:
        return sum(rows.num_rows for rows in decode(content, where="parts")), len(content)

    return work


def parse_part(what: str) -> Callable[[], tuple[int, int]]:
    """Event times and message ids out of decoded messages."""
    from waybill.parsers import build_parser
    from waybill.records.decode import decode

    parser = build_parser(config(what).streams[what].parser)
    batches = list(decode(frames_of(what), where="parts"))

    def work() -> tuple[int, int]:
        for rows in batches:
            if parser.parse(rows).error.null_count != rows.num_rows:
                raise RuntimeError("an event was refused")
        return sum(rows.num_rows for rows in batches), sum(rows.column("value").nbytes for rows in batches)

    return work


def parquet_part(what: str) -> Callable[[], tuple[int, int]]:
    """The rows of the task's own files, in the order and the row groups that they have there, encoded once more."""
    tables = written_files(what)

    def work() -> tuple[int, int]:
        with tempfile.TemporaryDirectory() as folder:
            size = sum(write_parquet(Path(folder) / f"{n}", *found) for n, found in enumerate(tables))
        return sum(table.num_rows for table, _ in tables), size

    return work


def written_files(what: str) -> list[tuple[pa.Table, pq.FileMetaData]]:
    """What a run over the whole archive of a topic writes, in memory."""
    import pyarrow.parquet as pq

    stream, found = config(what, **ONE_TASK), []
    prefix = partition_here(stream, what, run_task_measured([]))
    with store_of(stream) as store:
        for key in store.keys(prefix):
            if key.endswith(".parquet"):
                content = io.BytesIO(store.read(key))
                found.append((pq.read_table(content, partitioning=None), pq.read_metadata(content)))
    remove(prefix)
    return found


def write_parquet(path: Path, table: pa.Table, like: pq.FileMetaData) -> int:
    """With the codec, dictionaries and row groups of `like`."""
    import pyarrow.parquet as pq

    columns = [like.row_group(0).column(n) for n in range(like.num_columns)]
    dictionaries = [column.path_in_schema for column in columns if column.has_dictionary_page]
    with pq.ParquetWriter(path, table.schema, compression="zstd", use_dictionary=dictionaries) as writer:
        for n in range(like.num_row_groups):
            rows = like.row_group(n).num_rows
            start = sum(like.row_group(i).num_rows for i in range(n))
            writer.write_table(table.slice(start, rows), row_group_size=rows)
    return path.stat().st_size


STEPS = {
    "read from S3": read_part,
    "decompress": decompress_part,
    "decode": decode_part,
    "parse": parse_part,
    "Parquet": parquet_part,
}


def show_parts(rows: Sequence[Row]) -> None:
    messages = max(row.messages for row in rows)
    parts = [row for row in rows if row.name in STEPS]
    seconds, cpu = sum(row.seconds for row in parts), sum(row.cpu_seconds for row in parts)

    def line(name: str, spent: float, cpu_spent: float) -> tuple[str, ...]:
        each = f"{cpu_spent / messages * 1e6:.2f}"
        return name, f"{spent:.2f}", f"{cpu_spent:.2f}", each, f"{spent / seconds:.2f}", f"{cpu_spent / cpu:.2f}"

    lines = [line(row.name, row.seconds, row.cpu_seconds) for row in parts] + [line("sum of the parts", seconds, cpu)]
    lines += [line(row.name, row.seconds, row.cpu_seconds) for row in rows if row.name not in STEPS]
    headings = ("name", "seconds", "CPU s", "CPU µs a message", "× sum, seconds", "× sum, CPU")
    show(f"parts: {messages:,} messages, one thread, one core", headings, lines)


def _cases(_: argparse.Namespace) -> Iterator[Case]:
    for name, prepare in STEPS.items():
        yield part(name, prepare)
    yield whole_task("parts", "whole task", one_core=True)


def _make_input(arguments: argparse.Namespace) -> None:
    put("parts", messages=arguments.few, objects=PARTITIONS, partitions=1)


PARTS = Section("parts", _cases, _make_input, show_parts)
