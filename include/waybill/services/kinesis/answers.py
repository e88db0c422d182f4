"""The answers of GetRecords, parsed without botocore: its parser takes most of the CPU time of a plain reader.

botocore signs and sends the request, and emits `before-parse` with the answer's body. `parse_records` takes the body
there, so botocore's parser sees an empty document. msgspec decodes JSON and base64 in one pass, and leaves out fields
that Waybill does not know.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec

PARSED = "ParsedRecords"
"""The key in botocore's response under which `ParsedRecords` are found."""


class UnreadableAnswer(Exception):
    """Kinesis, or a server in between, sent an answer that is not a valid answer of the API. A retry may help."""


class RawRecord(NamedTuple):
    """A record as GetRecords returns it. GetRecords does not return the explicit hash key."""

    sequence_number: int
    arrival_ms: int
    """The approximate time of arrival, epoch ms; -1 if Kinesis does not state it."""
    partition_key: str | None
    """None if the producer gave none, which streams with the record distribution AUTO allow."""
    data: bytes
    encryption_type: str
    """`NONE` or `KMS`: how the record is encrypted in Kinesis. `data` is decrypted."""


class ParsedRecords(NamedTuple):
    """An answer of GetRecords."""

    records: list[RawRecord]
    next_iterator: str | None
    """None at the end of a closed shard."""
    millis_behind: int
    """The distance from the end of the answer to the tip of the shard, in ms. It may be above 0 in an answer without
    records."""


def register(client: Any) -> None:
    """Make `client` parse its answers of GetRecords here.

    Its answers then have the parsed records in the field `PARSED`.
    """
    client.meta.events.register("before-parse.kinesis.GetRecords", _before_parse)


def _before_parse(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    if response_dict["status_code"] == HTTPStatus.OK:
        customized_response_dict[PARSED] = parse_records(response_dict["body"])
        response_dict["body"] = b"{}"


class _Record(msgspec.Struct, gc=False):
    SequenceNumber: str
    Data: bytes
    ApproximateArrivalTimestamp: float | None = None
    PartitionKey: str | None = None
    EncryptionType: str | None = None


class _GetRecordsAnswer(msgspec.Struct, gc=False):
    Records: list[_Record]
    MillisBehindLatest: int
    NextShardIterator: str | None = None


_decoder = msgspec.json.Decoder(_GetRecordsAnswer)
_MAX_ARRIVAL_MS = 1 << 53  # a record batch holds times, and differences of times, of 64 bits


def parse_records(body: bytes) -> ParsedRecords:
    """Parse the JSON of an answer of GetRecords. Raises `UnreadableAnswer` if it is cut short, or lacks a field."""
    try:
        answer = _decoder.decode(body)
        records = [_raw_record(record) for record in answer.Records]
        if answer.NextShardIterator == "":
            raise ValueError("NextShardIterator is empty")
    except (ValueError, OverflowError) as error:  # msgspec's errors are ValueErrors
        raise UnreadableAnswer(f"{len(body):,} bytes are no answer of GetRecords: {error}") from error
    return ParsedRecords(records, answer.NextShardIterator, answer.MillisBehindLatest)


def _raw_record(record: _Record) -> RawRecord:
    arrival = record.ApproximateArrivalTimestamp
    arrival_ms = -1 if arrival is None else round(arrival * 1000)
    if abs(arrival_ms) > _MAX_ARRIVAL_MS:
        raise ValueError(f"ApproximateArrivalTimestamp {arrival} is no time")
    return RawRecord(
        int(record.SequenceNumber),
        arrival_ms,
        record.PartitionKey,
        record.Data,
        record.EncryptionType or "NONE",
    )
