"""Find the messages of one key in 30 days of an archive: by scanning it, in the key's partition, with the replay index.

    python bench/replay.py [--messages N] [--partitions N] [--repeats N] [--json FILE]

- `scan`: read all backup objects of all partitions, as a job without knowledge of the partitioner would.
- `pruned`: read the objects of the partition that the default partitioner gives the key.
- `indexed`: read the index of that partition, and the blocks that it names.
- `build`: build the index of all partitions (once; it serves every request).

The archive has one object per partition and hour, for 720 hours, with zstd. The keys are 100,000 different ones, and
the wanted one has one message in each hour. Messages repeat after a while, but for their times and offsets, and the key
has the same place in each hour. The objects are written to an S3 server on this machine directly. CPU seconds are those
of the measured process, not of the server.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from measurement import Case, Sample, Work, argument_parser, print_rates, run_cases, run_only_case, write_json
from services import BUCKET, s3_server

if TYPE_CHECKING:
    from waybill.services.store import Store

KEY = b"the wanted key"
_HOURS, _HOUR_MS = 720, 3_600_000
_START_MS = 1_764_547_200_000
_BATCH_MESSAGES = 500
_TEMPLATES = 400
_KEYS = 100_000
_TOPIC, _GENERATION, _PREFIX = "events", 1, "bench"


def open_store() -> Store:
    from waybill.config.connections import S3Endpoint, find_connection
    from waybill.services.store import Store

    return Store(S3Endpoint.of(find_connection("aws_default")), os.environ[BUCKET], _PREFIX)


def write_archive(arguments: argparse.Namespace) -> None:
    """Write the objects of all partitions: batches of a few templates, with new offsets and times."""
    from waybill.config.names import BackupName
    from waybill.records.batches.encode import Record, encode_batch
    from waybill.records.batches.framing import HEADER_BYTES, Codec, pack_batch, read_header
    from waybill.replay.requests.ranges import partition_of

    chosen = random.Random(1)

    def template(rare: bool) -> bytes:
        records = [
            Record(n, n * _HOUR_MS // _BATCH_MESSAGES, b"key-%08d" % chosen.randrange(_KEYS), _value(chosen))
            for n in range(_BATCH_MESSAGES)
        ]
        if rare:
            records[7] = records[7]._replace(key=KEY)
        return encode_batch(records, codec=Codec.ZSTD)

    plain, rare = [template(False) for _ in range(_TEMPLATES)], [template(True) for _ in range(5)]
    batches = max(1, round(arguments.messages / arguments.partitions / _HOURS / _BATCH_MESSAGES))
    own = partition_of(KEY, arguments.partitions)
    with open_store() as store:
        for partition in range(arguments.partitions):
            offset = 0
            for hour in range(_HOURS):
                name, data = BackupName(_TOPIC, _GENERATION, partition, offset), []
                for number in range(batches):
                    is_rare = partition == own and number == batches // 2
                    source = chosen.choice(rare if is_rare else plain)
                    at_ms = _START_MS + hour * _HOUR_MS
                    header = read_header(source, 0, "template")._replace(
                        base_offset=offset, base_timestamp_ms=at_ms, max_timestamp_ms=at_ms + _HOUR_MS - 1
                    )
                    data.append(pack_batch(header, memoryview(source)[HEADER_BYTES:]))
                    offset += _BATCH_MESSAGES
                store.create_if_absent(name.key(_PREFIX), b"".join(data))


def _value(chosen: random.Random) -> bytes:
    return b'{"id":"%08x","amount":%d,"state":"%s"}' % (
        chosen.randrange(1 << 32),
        chosen.randrange(10_000),
        chosen.choice([b"booked", b"cancelled", b"changed"]),
    )


def reading(partitions: str, arguments: argparse.Namespace) -> Work:
    """`partitions`: `all`, `one`, or `one, indexed`."""
    from waybill.config.names import TopicPartition
    from waybill.replay.requests.archived import read_archived
    from waybill.replay.requests.matching import WantedMessages
    from waybill.replay.requests.ranges import partition_of

    own = partition_of(KEY, arguments.partitions)
    numbers = range(arguments.partitions) if partitions == "all" else [own]
    end = messages_of_partition(arguments)
    wanted = WantedMessages([KEY], _START_MS, _START_MS + _HOURS * _HOUR_MS)

    def work() -> Sample:
        found = 0
        with open_store() as store:
            for number in numbers:
                pieces = read_archived(
                    store,
                    _GENERATION,
                    TopicPartition(_TOPIC, number),
                    wanted,
                    0,
                    end,
                    use_index="indexed" in partitions,
                )
                found += sum(len(piece.messages) for piece in pieces)
        if found != _HOURS:
            raise RuntimeError(f"{found} messages were found, not {_HOURS}")
        return Sample(end * arguments.partitions, 0, {"found": found})

    return work


def building(_: str, arguments: argparse.Namespace) -> Work:
    from waybill.config.names import TopicPartition
    from waybill.replay.requests.index.build import extend_index

    end = messages_of_partition(arguments)

    def work() -> Sample:
        index_bytes = archived_bytes = 0
        with open_store() as store:
            for number in range(arguments.partitions):
                figures = extend_index(store, _GENERATION, TopicPartition(_TOPIC, number), end)
                index_bytes += figures.index_bytes
                archived_bytes += figures.archived_bytes
        return Sample(end * arguments.partitions, archived_bytes, {"index_bytes": index_bytes})

    return work


def messages_of_partition(arguments: argparse.Namespace) -> int:
    batches = max(1, round(arguments.messages / arguments.partitions / _HOURS / _BATCH_MESSAGES))
    return int(batches * _BATCH_MESSAGES * _HOURS)


CASES = [
    Case("scan", "all", reading, warm_up=False),
    Case("pruned", "one", reading, warm_up=False),
    Case("build", "all", building, repeats=1, warm_up=False),
    Case("indexed", "one, indexed", reading),
]


def main() -> None:
    parser = argument_parser(__doc__, repeats=3)
    parser.add_argument("--messages", type=int, default=100_000_000)
    parser.add_argument("--partitions", type=int, default=12)
    arguments = parser.parse_args()
    if arguments.only:
        run_only_case(CASES, arguments)
        return
    with tempfile.TemporaryDirectory(prefix="waybill-bench-") as folder, s3_server(Path(folder)):
        print("writing the archive …", file=sys.stderr)
        write_archive(arguments)
        rows = run_cases(CASES, arguments)
    print_rates(f"One key of 30 days in {arguments.messages:,} messages", rows, baseline="scan")
    write_json(rows, arguments.json)


if __name__ == "__main__":
    main()
