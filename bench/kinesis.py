"""Read Kinesis records and make objects of them, without the upload.

    python bench/kinesis.py [--records N] [--case NAME] [--repeats N] [--json FILE]

`waybill` reads with `ShardReader` and encodes zstd record batches. The baseline `boto3-loop` is what a consumer in a
page of code does: boto3's `get_records` in a loop, each record as a line of JSON (base64 data) in a gzip object. Cases:
`single` has one event in each Kinesis record, `kpl` has KPL aggregates of 50 events. Both sides unpack aggregates, the
baseline with aws-kinesis-agg. The server is the script's own process, with answers that it made before the cases ran:
its CPU time does not count, and an emulator would need minutes for so many records.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import io
import json
import math
import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from events import MESSAGE_BYTES, message
from measurement import Case, Sample, Work, argument_parser, print_rates, run_cases, run_only_case, write_json

AGGREGATED = 50
KEYS = 1000
MAX_RECORDS = 10_000
MAX_BYTES = 10_000_000
FIRST_MS = 1_700_000_000_000
FIRST_SEQUENCE = 49680510334066078125161334800747181671462721233197465602
REGION = "us-east-1"


def read_with_waybill(case: str, arguments: argparse.Namespace) -> Work:
    from waybill.config.connections import KinesisEndpoint
    from waybill.records.shards.checkpoint import ShardPosition
    from waybill.services.kinesis import KinesisSource, ShardLimits, ShardReader
    from waybill.services.kinesis.messages import encode_records

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
        messages, size_bytes = 0, 0
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
        return Sample(messages, size_bytes, {"object_bytes": len(target.getvalue())})

    return work


class CannedKinesis:
    """A server that answers as Kinesis does, with answers that were made before. Its streams are their records."""

    def __init__(self, streams: dict[str, list[tuple[str, bytes]]]) -> None:
        self._bodies = {name: list(_get_records_answers(name, records)) for name, records in streams.items()}
        canned = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                body = canned.answer(self.headers["X-Amz-Target"].rpartition(".")[2], request)
                self.send_response(200)
                self.send_header("Content-Type", "application/x-amz-json-1.1")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint_url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()

    def answer(self, action: str, request: dict[str, Any]) -> bytes:
        if action == "GetRecords":
            stream, _, number = request["ShardIterator"].partition(":")
            return self._bodies[stream][int(number)]
        if action == "GetShardIterator":
            return json.dumps({"ShardIterator": f"{request['StreamName']}:0"}).encode()
        hashes = {"StartingHashKey": "0", "EndingHashKey": str((1 << 128) - 1)}
        sequences = {"StartingSequenceNumber": str(FIRST_SEQUENCE)}
        shard = {"ShardId": "shardId-000000000000", "HashKeyRange": hashes, "SequenceNumberRange": sequences}
        return json.dumps({"Shards": [shard]}).encode()


def _get_records_answers(stream: str, records: list[tuple[str, bytes]]) -> Iterator[bytes]:
    """Yield the bodies of answers of up to 10,000 records and about 10 MB, Kinesis' limits."""
    answers: list[list[dict[str, Any]]] = [[]]
    size_bytes = 0
    for number, (key, data) in enumerate(records):
        if len(answers[-1]) == MAX_RECORDS or size_bytes + len(data) > MAX_BYTES:
            answers.append([])
            size_bytes = 0
        size_bytes += len(data)
        answers[-1].append(
            {
                "ApproximateArrivalTimestamp": FIRST_MS / 1000 + number / 1000,
                "Data": base64.b64encode(data).decode(),
                "PartitionKey": key,
                "SequenceNumber": str(FIRST_SEQUENCE + (number << 40)),
            }
        )
    for number, answer in enumerate(answers):
        behind = 0 if number == len(answers) - 1 else 1000
        body = {"Records": answer, "NextShardIterator": f"{stream}:{number + 1}", "MillisBehindLatest": behind}
        yield json.dumps(body).encode()


def make_streams(count: int) -> dict[str, list[tuple[str, bytes]]]:
    """Return the records (partition key, data) of the streams `single` and `kpl`, with `count` events each."""
    from aws_kinesis_agg.aggregator import RecordAggregator

    chance = random.Random(1)
    events = [(f"passenger-{chance.randrange(KEYS)}", message(number, chance)) for number in range(count)]
    aggregates = []
    for start in range(0, count, AGGREGATED):
        aggregator = RecordAggregator()
        for key, data in events[start : start + AGGREGATED]:
            aggregator.add_user_record(key, data)
        key, _, data = aggregator.clear_and_get().get_contents()
        aggregates.append((key, data))
    return {"single": events, "kpl": aggregates}


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
    with CannedKinesis(make_streams(arguments.records)) as kinesis:
        rows = run_cases(cases, arguments, "--endpoint", kinesis.endpoint_url)
    title = f"Read {arguments.records:,} events of {MESSAGE_BYTES} bytes JSON from a shard, no upload"
    print_rates(title, rows, baseline="boto3-loop")
    write_json(rows, arguments.json)


if __name__ == "__main__":
    main()
