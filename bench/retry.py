"""What a retry of the quarantine takes, beside the partition run that would have taken the same messages. On two cores:

    python bench/retry.py [--messages N] [--json FILE]

Nine in ten of the events, of about 450 bytes each and over ten days, go to quarantine, since the parser looks for a
field that they do not have; one in a hundred is junk. Then a retry by the mended parser moves what it can. Beside it,
the same messages in another archive are partitioned by the mended parser, with the tasks one after the other in one
process. Each is a process of its own, forked when everything is imported; local stack, S3 by versitygw.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "integration"))

OBJECT_MESSAGES = 50_000
EVENT_BYTES = 450


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    options = parser.parse_args()

    from devstack import Stack

    with tempfile.TemporaryDirectory(prefix="waybill-bench-") as folder:
        stack = Stack.start(Path(folder) / "stack")
        try:
            os.environ.update(stack.environment())
            figures = measure(options.messages)
        finally:
            stack.stop(grace_seconds=0.0)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def measure(messages: int) -> dict[str, Any]:
    """Seconds, CPU seconds and peak memory of both."""
    from partition_scenes import new_scene
    from quarantine_scenes import BROKEN, MENDED

    configs = []
    for reading in (BROKEN, MENDED):
        path = Path(tempfile.mkstemp(suffix=".json")[1])
        in_child(lambda reading=reading, path=path: fill(new_scene(parser=reading), messages, path))
        configs.append(path)
    quarantined, other = configs
    in_child(lambda: partition(quarantined))
    figures = {"messages": messages, "partition": in_child(lambda: partition(other))}
    figures["retry"] = in_child(lambda: retry(quarantined))
    for name in ("partition", "retry"):
        found = figures[name]
        print(
            f"{name:10} {found['moved']:,} rows, {found['stayed']:,} not: {found['seconds']:.1f} s, "
            f"{found['messages'] / found['seconds']:,.0f} messages/s, {found['cpu_seconds']:.1f} CPU s, "
            f"{found['peak_rss_bytes'] / 1e6:.0f} MB"
        )
    for path in configs:
        path.unlink()
    return figures


def fill(scene: Any, messages: int, path: Path) -> dict[str, Any]:
    """An archive; the config goes to `path`."""
    from partition_scenes import DAY_MS, junk

    from waybill.names import TopicPartition
    from waybill.records.encode import Record

    def record(offset: int) -> Record:
        if offset % 100 == 99:
            return junk(offset, offset)
        at = offset * 10 * DAY_MS // messages
        field = "time" if offset % 10 == 0 else "at"
        value = f'{{"id": "{offset:08x}", "{field}": {at}, "at": {at}, "pad": "'
        return Record(offset, at, b"key", f'{value}{"x" * (EVENT_BYTES - len(value) - 2)}"}}'.encode())

    for first in range(0, messages, OBJECT_MESSAGES):
        scene.put(
            TopicPartition("flights", 0), [record(n) for n in range(first, min(first + OBJECT_MESSAGES, messages))]
        )
    path.write_text(scene.config.model_dump_json())
    return {}


def partition(path: Path) -> dict[str, Any]:
    """A run, its tasks in this process."""
    from partition_scenes import in_this_process

    from waybill.config import Config
    from waybill.partition.run import run_partition

    report = run_partition(Config.model_validate_json(path.read_text()), "flights", in_this_process)
    return {"moved": report.rows, "stayed": report.quarantined, "messages": report.rows + report.quarantined}


def retry(path: Path) -> dict[str, Any]:
    """A retry of all of the quarantine, by the mended parser."""
    from quarantine_scenes import MENDED

    from waybill.config import Config
    from waybill.quarantine.retry import retry_quarantine
    from waybill.quarantine.row_filter import RowFilter

    document = json.loads(path.read_text())
    document["streams"]["flights"]["parser"] = MENDED
    report = retry_quarantine(Config.model_validate(document), "flights", RowFilter())
    stayed = report.stayed_messages
    return {"moved": report.moved, "stayed": stayed, "messages": report.moved + stayed}


def in_child(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `work` gives in a process of its own, and what that took."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        began = time.perf_counter()
        document = work()
        document["seconds"] = time.perf_counter() - began
        with os.fdopen(writer, "w") as out:
            json.dump(document, out)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    _, status, used = os.wait4(child, 0)
    if status:
        sys.exit(f"a child failed: {status}")
    peak = used.ru_maxrss << 10
    return {**json.loads(text), "cpu_seconds": used.ru_utime + used.ru_stime, "peak_rss_bytes": peak}


if __name__ == "__main__":
    main()
