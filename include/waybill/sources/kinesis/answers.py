"""The answers of GetRecords, parsed without botocore: its parser takes most of the CPU time of a plain reader.

botocore signs and sends the request, and emits `before-parse` with the answer's body. `parse_records` takes the body
there, so botocore's parser sees an empty document. Fields that Waybill does not know are left out.
"""

from __future__ import annotations

import binascii
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PARSED", "ParsedRecords", "RawRecord", "UnreadableAnswer", "parse_records", "register"]

PARSED = "ParsedRecords"
"""The key in botocore's response under which `ParsedRecords` are found."""


class UnreadableAnswer(Exception):
    """Kinesis, or something in between, sent an answer that cannot be an answer of the API. A retry may help."""


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
    """How far behind the tip of the shard the answer ends, in ms. It may be above 0 in an answer without records."""


def register(client: Any) -> None:
    """Make `client` parse its answers of GetRecords here. They are then found under `PARSED`."""
    client.meta.events.register("before-parse.kinesis.GetRecords", _before_parse)


def _before_parse(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    if response_dict["status_code"] == HTTPStatus.OK:
        customized_response_dict[PARSED] = parse_records(response_dict["body"])
        response_dict["body"] = b"{}"


def parse_records(body: bytes) -> ParsedRecords:
    """Parse the JSON of an answer of GetRecords. Raises `UnreadableAnswer` if it is cut short, or lacks a field."""
    try:
        document = orjson.loads(body)
        records = [_record(fields) for fields in document["Records"]]
        millis_behind = int(document["MillisBehindLatest"])
        iterator = document.get("NextShardIterator")
        if iterator is not None and not (isinstance(iterator, str) and iterator):
            raise ValueError(f"NextShardIterator is {iterator!r}")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:  # orjson's error is a ValueError
        shown = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise UnreadableAnswer(f"{len(body):,} bytes are no answer of GetRecords: {shown}") from error
    return ParsedRecords(records, iterator, millis_behind)


def _record(fields: Mapping[str, Any]) -> RawRecord:
    arrival = fields.get("ApproximateArrivalTimestamp")
    return RawRecord(
        int(fields["SequenceNumber"]),
        -1 if arrival is None else round(arrival * 1000),
        fields.get("PartitionKey"),
        binascii.a2b_base64(fields["Data"], strict_mode=True),
        fields.get("EncryptionType") or "NONE",
    )
