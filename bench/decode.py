"""Decode record batches: Waybill's decoder to Arrow and kafka-python's record loop, over the same bytes, on one core.

    python bench/decode.py [--messages N] [--case VARIANT_OR_NAME] [--repeats N] [--json FILE]

Both check every CRC. kafka-python yields one object for each message, Waybill Arrow RecordBatches. The variants are the
codecs, with 500 messages in a batch (226 KB, as a tuned producer sends them), and `zstd-16k` with 36 messages (16 KB,
Kafka's default `batch.size`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from events import MESSAGE_BYTES, write_batches
from measurement import Case, Sample, Work, argument_parser, print_rates, run_cases, run_only_case, write_json

from waybill.records.batches import Codec

VARIANTS = {codec.name.lower(): (codec, 500) for codec in Codec} | {"zstd-16k": (Codec.ZSTD, 36)}


def waybill(variant: str, arguments: argparse.Namespace) -> Work:
    from waybill.records.batches.decode import decode

    data = (arguments.input / variant).read_bytes()
    return lambda: Sample(sum(batch.num_rows for batch in decode(data, where=variant)), len(data))


def kafka_python(variant: str, arguments: argparse.Namespace) -> Work:
    from kafka.record.memory_records import MemoryRecords

    data = (arguments.input / variant).read_bytes()

    def work() -> Sample:
        messages = 0
        for batch in MemoryRecords(data):
            if not batch.validate_crc():
                raise ValueError(f"{variant}: wrong CRC")
            for record in batch:
                messages += record.value is not None
        return Sample(messages, len(data))

    return work


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--input", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    alternatives = {"waybill": waybill, "kafka-python": kafka_python}
    cases = [Case(name, variant, prepare) for variant in VARIANTS for name, prepare in alternatives.items()]
    if arguments.only:
        run_only_case(cases, arguments)
        return
    with tempfile.TemporaryDirectory(prefix="waybill-bench-") as folder:
        print("writing the input …", file=sys.stderr)
        for variant in set(arguments.case or ()) & set(VARIANTS) or VARIANTS:
            codec, per_batch = VARIANTS[variant]
            write_batches(Path(folder) / variant, codec, arguments.messages, per_batch)
        rows = run_cases(cases, arguments, "--input", folder)
    title = f"Decode {arguments.messages:,} messages of {MESSAGE_BYTES} bytes JSON, one core"
    print_rates(title, rows, baseline="kafka-python")
    write_json(rows, arguments.json)


if __name__ == "__main__":
    main()
