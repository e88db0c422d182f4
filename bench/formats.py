"""Record batches to the bytes of each backup format and their index, without the upload: what a format costs a lane.

The baseline, `decode`, only decodes the same batches, which every format but `kafka` has to do first. On one core:

    python bench/formats.py [--json FILE] [--messages N]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from _report import Case, Done, Work, argument_parser, main
from decode import MESSAGE_BYTES, make_input

TOPICS = ("none", "zstd")
"""How the producers compressed the batches."""

FORMATS: dict[str, dict[str, str]] = {
    "sequencefile legacy": {"name": "sequencefile", "key": "legacy"},
    "sequencefile": {"name": "sequencefile"},
    "sequencefile snappy": {"name": "sequencefile", "compression": "snappy"},
    "sequencefile zstd": {"name": "sequencefile", "compression": "zstd"},
    "sequencefile gzip": {"name": "sequencefile", "compression": "gzip"},
    "text": {"name": "text"},
    "text gzip": {"name": "text", "compression": "gzip"},
}

_CHUNK_BATCHES = 16


class _Sink:
    """Takes the place of the store: counts, and keeps nothing."""

    prefix = ""
    index_bytes = 0

    def upload_if_absent(self, *_: object) -> _Sink:
        return self

    def create_if_absent(self, _: str, data: bytes) -> None:
        self.index_bytes = len(data)

    def write(self, data: object) -> None: ...

    def complete(self) -> None: ...


def with_format(topic: str, name: str) -> Case:
    def prepare(arguments: argparse.Namespace) -> Work:
        from waybill.archive.backup_object import new_backup_object
        from waybill.config import Format
        from waybill.names import BackupName
        from waybill.records import framing

        data = memoryview((arguments.input / topic).read_bytes())
        frames = list(framing.frames(data, where=topic))
        kind = Format.model_validate(FORMATS[name])

        def work() -> Done:
            store: Any = _Sink()
            target = new_backup_object(store, BackupName("bench", 1, 0, 0, kind.extension), "", kind)
            for start in range(0, len(frames), _CHUNK_BATCHES):
                target.begin_chunk(data)
                for frame in frames[start : start + _CHUNK_BATCHES]:
                    target.take(frame, archived=True)
                target.flush()
            target.complete()
            sizes = {"object_bytes": target.size_bytes, "index_bytes": store.index_bytes}
            return Done(target.messages, len(data), sizes)

        return work

    return Case(name, topic, prepare)


def with_decode(topic: str) -> Case:
    def prepare(arguments: argparse.Namespace) -> Work:
        from waybill.records.decode import decode

        data = (arguments.input / topic).read_bytes()
        return lambda: Done(sum(b.num_rows for b in decode(data, where=topic, verify_crc=False)), len(data))

    return Case("decode", topic, prepare)


def run() -> None:
    parser = argument_parser("write backup formats: messages/s and CPU seconds")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--input", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    cases = [case for topic in TOPICS for case in (with_decode(topic), *(with_format(topic, name) for name in FORMATS))]
    title = f"Write {arguments.messages:,} messages of {MESSAGE_BYTES} bytes JSON, one core, no upload"
    if arguments.only:
        main(title, cases, arguments, baseline="decode")
        return
    with tempfile.TemporaryDirectory(prefix="waybill-bench-") as folder:
        print("making the input …", file=sys.stderr)
        make_input(Path(folder), arguments.messages, set(arguments.case or TOPICS))
        main(title, cases, arguments, baseline="decode", passed_on=["--input", folder])


if __name__ == "__main__":
    run()
