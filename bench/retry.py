"""Retry the quarantine, and for comparison partition the same messages by the repaired parser.

    python bench/retry.py [--messages N] [--json FILE]

Nine in ten of the events, of about 450 bytes each and over ten days, go to quarantine, since the parser reads a field
that they do not have; one in a hundred is junk. A retry with the repaired parser then moves what it can parse. For
comparison, a partition run with the repaired parser reads the same messages from another archive, its tasks one after
the other in one process. Each of the two is a process of its own, forked after the imports. The script starts a local
stack.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from services import running_services

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "integration"))

OBJECT_MESSAGES = 50_000
EVENT_BYTES = 450


def measure(messages: int, folder: Path) -> dict[str, Any]:
    """Return the figures of the partition run and of the retry, and print them."""
    from quarantine_scenes import BROKEN, MENDED

    to_retry, to_partition = folder / "retry.json", folder / "partition.json"
    for parser, config in ((BROKEN, to_retry), (MENDED, to_partition)):
        run_in_child(lambda parser=parser, config=config: fill_archive(parser, messages, config))
    run_in_child(lambda: partition(to_retry))
    figures = {
        "partition": run_in_child(lambda: partition(to_partition)),
        "retry": run_in_child(lambda: retry(to_retry)),
    }
    for name, row in figures.items():
        print(
            f"{name:10} {row['moved']:,} rows, {row['stayed']:,} not: {row['seconds']:.1f} s, "
            f"{row['messages'] / row['seconds']:,.0f} messages/s, {row['cpu_seconds']:.1f} CPU s, "
            f"{row['peak_rss_bytes'] / 1e6:.0f} MB"
        )
    return {"messages": messages, **figures}


def fill_archive(parser: dict[str, Any], messages: int, config: Path) -> dict[str, Any]:
    """Create the backup objects, and write the stream's config to a file."""
    from partition_scenes import DAY_MS, junk, new_scene

    from waybill.config.names import TopicPartition
    from waybill.records.batches.encode import Record

    def record(offset: int) -> Record:
        if offset % 100 == 99:
            return junk(offset, offset)
        time_ms = offset * 10 * DAY_MS // messages
        field = "time" if offset % 10 == 0 else "at"
        value = f'{{"id": "{offset:08x}", "{field}": {time_ms}, "at": {time_ms}, "pad": "'
        return Record(offset, time_ms, b"key", f'{value}{"x" * (EVENT_BYTES - len(value) - 2)}"}}'.encode())

    scene = new_scene(parser=parser)
    for first in range(0, messages, OBJECT_MESSAGES):
        records = [record(offset) for offset in range(first, min(first + OBJECT_MESSAGES, messages))]
        scene.put(TopicPartition("flights", 0), records)
    config.write_text(scene.config.model_dump_json())
    return {}


def partition(config: Path) -> dict[str, Any]:
    """Run the partition job's driver and its tasks in this process."""
    from partition_scenes import in_this_process

    from waybill.config.models import Config
    from waybill.tables.partition.partition_run import run_partition

    report = run_partition(Config.model_validate_json(config.read_text()), "flights", in_this_process)
    return {"moved": report.rows, "stayed": report.quarantined, "messages": report.rows + report.quarantined}


def retry(config: Path) -> dict[str, Any]:
    """Retry the whole quarantine with the repaired parser."""
    from quarantine_scenes import MENDED

    from waybill.config.models import Config
    from waybill.tables.quarantine.retry import retry_quarantine
    from waybill.tables.quarantine.row_filter import RowFilter

    document = json.loads(config.read_text())
    document["streams"]["flights"]["parser"] = MENDED
    report = retry_quarantine(Config.model_validate(document), "flights", RowFilter())
    stayed = report.stayed_messages
    return {"moved": report.moved, "stayed": stayed, "messages": report.moved + stayed}


def run_in_child(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the result of `work` in a forked process, with the cost of that process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            start = time.perf_counter()
            result = work()
            with os.fdopen(writer, "w") as out:
                json.dump({**result, "seconds": time.perf_counter() - start}, out)
        except BaseException:  # must not reach the parent's code, which would stop the stack
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    _, status, usage = os.wait4(child, 0)
    if status:
        sys.exit(f"a child process failed with status {status}")
    cpu_seconds = usage.ru_utime + usage.ru_stime
    return {**json.loads(text), "cpu_seconds": cpu_seconds, "peak_rss_bytes": usage.ru_maxrss << 10}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    arguments = parser.parse_args()
    with running_services(), tempfile.TemporaryDirectory() as folder:
        figures = measure(arguments.messages, Path(folder))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
