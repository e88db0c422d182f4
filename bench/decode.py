"""Record batches to messages: Waybill's decode to Arrow beside kafka-python's record loop, over the same bytes.

Both check every CRC. kafka-python yields an object a message; Waybill yields Arrow RecordBatches. Run on one core:

    python bench/decode.py [--json FILE] [--messages N]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from _report import Case, Done, Work, argument_parser, main

from waybill.records import HEADER_BYTES, Codec, read_header
from waybill.records.compression import compress
from waybill.records.encode import Record, encode_batch
from waybill.records.framing import pack_batch

MESSAGE_BYTES = 453
LARGE, SMALL = 500, 36
"""Messages a batch: 226 KB, as a tuned producer sends them, and 16 KB, Kafka's default `batch.size`."""

VARIANTS = {codec.name.lower(): (codec, LARGE) for codec in Codec} | {"zstd-16k": (Codec.ZSTD, SMALL)}


def message(number: int, chance: random.Random) -> bytes:
    """A booking event of 453 bytes: ids, numbers, some fields of few values, some free text."""
    event = {
        "event_id": f"{chance.getrandbits(128):032x}",
        "event_time": 1_700_000_000_000 + number * 13 + chance.randrange(1000),
        "type": chance.choice(["search", "select", "seat", "pay", "confirm", "cancel"]),
        "carrier": chance.choice(["UA", "AA", "DL", "B6", "WN", "EV", "MQ"]),
        "flight": chance.randrange(1, 9999),
        "origin": chance.choice(["JFK", "LGA", "EWR"]),
        "dest": chance.choice(["LAX", "SFO", "ATL", "ORD", "MIA", "BOS", "IAH", "DEN"]),
        "passenger": {"id": chance.randrange(10_000_000), "tier": chance.choice(["none", "silver", "gold"])},
        "price": round(chance.random() * 900, 2),
        "session": f"{chance.getrandbits(64):016x}",
        "ip": ".".join(str(chance.randrange(256)) for _ in range(4)),
        "agent": f"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/{chance.randrange(90, 131)}.0",
        "note": "",
    }
    words = ["window", "aisle", "vegetarian", "late", "transfer", "upgrade", "family", "baggage", "meal", "wheelchair"]
    missing = MESSAGE_BYTES - len(json.dumps(event, separators=(",", ":")))
    event["note"] = " ".join(chance.choices(words, k=missing // 4 + 1))[: max(missing, 0)]
    return json.dumps(event, separators=(",", ":")).encode()


def uncompressed_batches(messages: int, per_batch: int) -> Iterator[bytes]:
    chance = random.Random(7)
    for start in range(0, messages, per_batch):
        numbers = range(start, min(start + per_batch, messages))
        yield encode_batch(
            [Record(n, 1_700_000_000_000 + n, b"%08d" % (n % 5000), message(n, chance)) for n in numbers]
        )


def make_input(folder: Path, messages: int, wanted: set[str]) -> None:
    """One file a variant: the same messages as record batches of that codec and size."""
    for per_batch in (LARGE, SMALL):
        variants = {name: codec for name, (codec, size) in VARIANTS.items() if size == per_batch and name in wanted}
        files = {name: (folder / name).open("wb") for name in variants}
        for batch in uncompressed_batches(messages, per_batch) if variants else ():
            header, records = read_header(batch, 0, "input"), batch[HEADER_BYTES:]
            for name, codec in variants.items():
                files[name].write(pack_batch(header._replace(attributes=int(codec)), compress(codec, records)))
        for file in files.values():
            file.close()


def with_waybill(variant: str) -> Case:
    def prepare(arguments: argparse.Namespace) -> Work:
        from waybill.records.decode import decode

        data = (arguments.input / variant).read_bytes()
        return lambda: Done(sum(batch.num_rows for batch in decode(data, where=variant)), len(data))

    return Case("waybill", variant, prepare)


def with_kafka_python(variant: str) -> Case:
    def prepare(arguments: argparse.Namespace) -> Work:
        from kafka.record.memory_records import MemoryRecords

        data = (arguments.input / variant).read_bytes()

        def work() -> Done:
            messages = 0
            for batch in MemoryRecords(data):
                if not batch.validate_crc():
                    raise ValueError(f"{variant}: bad CRC")
                for record in batch:
                    messages += record.value is not None
            return Done(messages, len(data))

        return work

    return Case("kafka-python", variant, prepare)


def run() -> None:
    parser = argument_parser("decode record batches: messages/s and CPU seconds")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--input", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    cases = [make(variant) for variant in VARIANTS for make in (with_waybill, with_kafka_python)]
    title = f"Decode {arguments.messages:,} messages of {MESSAGE_BYTES} bytes JSON, one core"
    if arguments.only:
        main(title, cases, arguments, baseline="kafka-python")
        return
    with tempfile.TemporaryDirectory(prefix="waybill-bench-") as folder:
        print("making the input …", file=sys.stderr)
        wanted = set(arguments.case or ()) & set(VARIANTS) or set(VARIANTS)
        make_input(Path(folder), arguments.messages, wanted)
        main(title, cases, arguments, baseline="kafka-python", passed_on=["--input", folder])


if __name__ == "__main__":
    run()
