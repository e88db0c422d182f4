"""Write backup objects in each format, with their index objects but without the upload, on one core.

    python bench/formats.py [--messages N] [--case NAME] [--repeats N] [--json FILE]

The baseline `decode` only decodes the same batches, which every format but `kafka` has to do first. The variants are
the codecs of the producers.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from events import MESSAGE_BYTES, write_batches
from measurement import Case, Sample, Work, argument_parser, print_rates, run_cases, run_only_case, write_json

from waybill.records.batches import Codec

CODECS = {"none": Codec.NONE, "zstd": Codec.ZSTD}
FORMATS = {
    "sequencefile legacy": {"name": "sequencefile", "key": "legacy"},
    "sequencefile": {"name": "sequencefile"},
    "sequencefile snappy": {"name": "sequencefile", "compression": "snappy"},
    "sequencefile zstd": {"name": "sequencefile", "compression": "zstd"},
    "sequencefile gzip": {"name": "sequencefile", "compression": "gzip"},
    "text": {"name": "text"},
    "text gzip": {"name": "text", "compression": "gzip"},
}
BATCH_MESSAGES = 500
CHUNK_BATCHES = 16
"""Batches that the backup object gets before each flush, as from one fetch."""


class NullStore:
    """Stands in for the store: counts the bytes of the index object, and keeps nothing."""

    prefix = ""
    index_bytes = 0

    def upload_if_absent(self, *_: object) -> NullStore:
        return self

    def create_if_absent(self, _: str, data: bytes) -> None:
        self.index_bytes = len(data)

    def write(self, data: object) -> None: ...

    def complete(self) -> None: ...


def write_format(settings: dict[str, str], codec: str, arguments: argparse.Namespace) -> Work:
    from waybill.archive.chain.new_object import new_backup_object
    from waybill.config.models import Format
    from waybill.config.names import BackupName
    from waybill.records.batches import framing

    data = memoryview((arguments.input / codec).read_bytes())
    frames = list(framing.frames(data, where=codec))
    kind = Format.model_validate(settings)

    def work() -> Sample:
        store: Any = NullStore()
        target = new_backup_object(store, BackupName("bench", 1, 0, 0, kind.extension), "", kind)
        for start in range(0, len(frames), CHUNK_BATCHES):
            target.begin_chunk(data)
            for frame in frames[start : start + CHUNK_BATCHES]:
                target.take(frame, archived=True)
            target.flush()
        target.complete()
        sizes = {"object_bytes": target.size_bytes, "index_bytes": store.index_bytes}
        return Sample(target.messages, len(data), sizes)

    return work


def decode_only(codec: str, arguments: argparse.Namespace) -> Work:
    from waybill.records.batches.decode import decode

    data = (arguments.input / codec).read_bytes()
    return lambda: Sample(sum(rows.num_rows for rows in decode(data, where=codec, verify_crc=False)), len(data))


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--input", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    cases = []
    for codec in CODECS:
        cases.append(Case("decode", codec, decode_only))
        cases += [Case(name, codec, partial(write_format, settings)) for name, settings in FORMATS.items()]
    if arguments.only:
        run_only_case(cases, arguments)
        return
    with tempfile.TemporaryDirectory(prefix="waybill-bench-") as folder:
        print("writing the input …", file=sys.stderr)
        for name, codec in CODECS.items():
            write_batches(Path(folder) / name, codec, arguments.messages, BATCH_MESSAGES)
        rows = run_cases(cases, arguments, "--input", folder)
    title = f"Write {arguments.messages:,} messages of {MESSAGE_BYTES} bytes JSON, one core, no upload"
    print_rates(title, rows, baseline="decode")
    write_json(rows, arguments.json)


if __name__ == "__main__":
    main()
