"""Read Kinesis records from an emulator and make objects of them, without the upload.

    python bench/kinesis.py [--records N] [--case NAME] [--repeats N] [--json FILE]

`waybill` reads with `ShardReader` and encodes zstd record batches. The baseline `boto3-loop` is what a consumer in a
page of code does: boto3's `get_records` in a loop, each record as a line of JSON (base64 data) in a gzip object. Cases:
`single` has one event in each Kinesis record, `kpl` has KPL aggregates of 50 events. Both sides unpack aggregates, the
baseline with aws-kinesis-agg. The emulator is a process of its own, whose CPU time does not count.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import io
import json
import math
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from events import MESSAGE_BYTES, message
from measurement import Case, Sample, Work, argument_parser, print_rates, run_cases, run_only_case, write_json

AGGREGATED = 50
KEYS = 1000
OBJECT_BYTES = 64 << 20
_PUT_RECORDS = 500
_READY_SECONDS = 30.0
REGION = "us-east-1"


def read_with_waybill(case: str, arguments: argparse.Namespace) -> Work:
    from waybill.connections import KinesisEndpoint
    from waybill.shards.checkpoint import ShardPosition
    from waybill.sources.kinesis import KinesisSource, ShardLimits, ShardReader
    from waybill.sources.kinesis.messages import encode_records

    endpoint = KinesisEndpoint(endpoint_url=arguments.endpoint, region=REGION, access_key="key", secret_key="secret")
    source = KinesisSource(endpoint)
    (shard,) = source.list_shards(case).values()
    reader = ShardReader(source, case, shard.shard_id, limits=ShardLimits(math.inf, math.inf))

    def work() -> Sample:
        messages, size_bytes, object_bytes = 0, 0, 0
        for read in reader.read(ShardPosition.trim_horizon()):
            encoded = encode_records(read.records, shard, messages)
            messages += encoded.messages
            size_bytes += read.size_bytes
            object_bytes += len(encoded.data)
        return Sample(messages, size_bytes, {"object_bytes": object_bytes})

    return work


def read_with_boto3(case: str, arguments: argparse.Namespace) -> Work:
    import boto3
    from aws_kinesis_agg.deaggregator import iter_deaggregate_records

    client: Any = boto3.client(
        "kinesis",
        endpoint_url=arguments.endpoint,
        region_name=REGION,
        aws_access_key_id="key",
        aws_secret_access_key="secret",
    )
    shard_id = client.list_shards(StreamName=case)["Shards"][0]["ShardId"]

    def as_lines(records: list[dict[str, Any]]) -> Iterator[bytes]:
        if case == "single":
            for record in records:
                fields = {
                    "partition_key": record["PartitionKey"],
                    "sequence_number": record["SequenceNumber"],
                    "arrival_ms": round(record["ApproximateArrivalTimestamp"].timestamp() * 1000),
                    "data": base64.b64encode(record["Data"]).decode(),
                }
                yield json.dumps(fields).encode() + b"\n"
            return
        for unpacked in iter_deaggregate_records(records, data_format="Boto3"):
            record = unpacked["kinesis"]
            fields = {
                "partition_key": record["partitionKey"],
                "sequence_number": record["sequenceNumber"],
                "sub_sequence_number": record["subSequenceNumber"],
                "arrival_ms": round(record["approximateArrivalTimestamp"].timestamp() * 1000),
                "data": record["data"].decode(),
            }
            yield json.dumps(fields).encode() + b"\n"

    def work() -> Sample:
        messages, size_bytes, object_bytes = 0, 0, 0
        iterator = client.get_shard_iterator(StreamName=case, ShardId=shard_id, ShardIteratorType="TRIM_HORIZON")
        iterator = iterator["ShardIterator"]
        target = io.BytesIO()
        lines = gzip.GzipFile(fileobj=target, mode="wb", compresslevel=6)
        while True:
            answer = client.get_records(ShardIterator=iterator)
            for line in as_lines(answer["Records"]):
                lines.write(line)
                messages += 1
            size_bytes += sum(len(record["Data"]) + len(record["PartitionKey"]) for record in answer["Records"])
            iterator = answer["NextShardIterator"]
            if answer["MillisBehindLatest"] == 0:
                break
        lines.close()
        object_bytes += len(target.getvalue())
        return Sample(messages, size_bytes, {"object_bytes": object_bytes})

    return work


@contextmanager
def emulator(directory: Path) -> Iterator[str]:
    """Start the emulator and yield its URL."""
    from devstack.control import GuardianHandle
    from devstack.kinesis import KinesisEmulator, emulator_home
    from devstack.servers import free_ports

    port, tls_port = free_ports(2)
    server = KinesisEmulator(emulator_home(), directory / "kinesis", port, tls_port)
    (logs := directory / "logs").mkdir()
    guardian = GuardianHandle.start(directory)
    try:
        for spec in server.specs(logs):
            guardian.start_server(spec)
        deadline = time.monotonic() + _READY_SECONDS
        while (missing := server.why_not_ready()) is not None:
            if time.monotonic() > deadline:
                raise RuntimeError(missing)
            time.sleep(0.1)
        yield server.endpoint_url
    finally:
        guardian.shutdown(grace_seconds=0.0)


def fill(endpoint: str, count: int) -> None:
    """Make the streams `single` and `kpl`, with `count` events each."""
    import boto3
    from aws_kinesis_agg.aggregator import RecordAggregator

    client: Any = boto3.client(
        "kinesis",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id="key",
        aws_secret_access_key="secret",
    )
    chance = random.Random(1)
    events = [(f"passenger-{chance.randrange(KEYS)}", message(number, chance)) for number in range(count)]
    aggregates = []
    for start in range(0, count, AGGREGATED):
        aggregator = RecordAggregator()
        for key, data in events[start : start + AGGREGATED]:
            aggregator.add_user_record(key, data)
        key, _, data = aggregator.clear_and_get().get_contents()
        aggregates.append((key, data))
    for stream, records, batch in (("single", events, _PUT_RECORDS), ("kpl", aggregates, _PUT_RECORDS // 4)):
        client.create_stream(StreamName=stream, ShardCount=1)
        client.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1, "MaxAttempts": 30})
        for start in range(0, len(records), batch):
            entries = [{"PartitionKey": key, "Data": data} for key, data in records[start : start + batch]]
            answer = client.put_records(StreamName=stream, Records=entries)
            if answer["FailedRecordCount"]:
                raise RuntimeError(f"the emulator refused {answer['FailedRecordCount']} records")


def main() -> None:
    parser = argument_parser(__doc__, repeats=3)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--endpoint", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    cases = []
    for case in ("single", "kpl"):
        cases += [Case("waybill", case, read_with_waybill), Case("boto3-loop", case, read_with_boto3)]
    if arguments.only:
        run_only_case(cases, arguments)
        return
    with tempfile.TemporaryDirectory(prefix="waybill-bench-") as folder, emulator(Path(folder)) as endpoint:
        fill(endpoint, arguments.records)
        rows = run_cases(cases, arguments, "--endpoint", endpoint)
    title = f"Read {arguments.records:,} events of {MESSAGE_BYTES} bytes JSON from a shard, no upload"
    print_rates(title, rows, baseline="boto3-loop")
    write_json(rows, arguments.json)


if __name__ == "__main__":
    main()
