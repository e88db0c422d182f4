"""The streams of Kinesis and their shards.

What this relies on: ListShards returns every shard whose records Kinesis still holds, open or closed, once a change of
the stream has ended. A list of shards is kept for half a minute, so that many lanes do not use up its quota, and a new
shard is still noticed within a minute.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self

from waybill.base.errors import KinesisUnavailable
from waybill.config.connections import S3Endpoint
from waybill.records.shards.lineage import Shard, by_id
from waybill.services.kinesis.calls import KinesisAction, KinesisCalls, KinesisRefusal, Sleep

_SHARDS_MAX_AGE = timedelta(seconds=30)
_LISTING_STARTS = 3
_NO_STREAM = "ResourceNotFoundException"
_EXPIRED_TOKEN = "ExpiredNextTokenException"


@dataclass(frozen=True, slots=True)
class StreamDescription:
    """A stream as DescribeStreamSummary returns it."""

    name: str
    arn: str
    created_ms: int
    """Epoch ms. A stream of the same name that was created at another time is another stream."""
    retention: timedelta
    open_shards: int
    encryption_type: str
    """`NONE` or `KMS`."""
    status: str
    """`ACTIVE`; `UPDATING` while it is resharded or its settings change; `CREATING`, `DELETING`."""


class KinesisSource:
    """A connection to Kinesis, with the settings of an AWS connection. A context manager. Several threads may share it.

    A stream is given by its name, in the connection's region, or by its ARN, in the ARN's region and account.

    Every method raises `KinesisUnavailable` when it gets no usable answer after all retries, and `ConfigError` when
    access is denied or the stream does not exist.
    """

    def __init__(
        self,
        endpoint: S3Endpoint,
        *,
        shards_max_age: timedelta = _SHARDS_MAX_AGE,
        client: Any = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Sleep = time.sleep,
    ) -> None:
        """`client` replaces botocore's, and `clock` (seconds) and `sleep` replace the time, in tests."""
        self._endpoint = endpoint
        self._shards_max_age_seconds = shards_max_age.total_seconds()
        self._client = client
        self.clock = clock
        self.sleep = sleep
        self._calls: dict[str | None, KinesisCalls] = {}
        self._shards: dict[str, tuple[float, dict[str, Shard]]] = {}
        self._connecting = threading.Lock()
        self._listing = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        for calls in self._calls.values():
            calls.close()
        self._calls.clear()

    def calls(self, stream: str = "") -> KinesisCalls:
        """Return the client for the region of a stream."""
        region = _region_of(stream)
        with self._connecting:
            found = self._calls.get(region)
            if found is None:
                found = KinesisCalls(self._endpoint, region, client=self._client, sleep=self.sleep)
                found.client  # noqa: B018 (created under the lock)
                self._calls[region] = found
        return found

    def list_streams(self) -> list[str]:
        """Return the names of all streams of the connection's region and account, sorted."""
        names: list[str] = []
        page: Mapping[str, Any] = {}
        while True:
            answer = self.calls().ask(
                KinesisAction.LIST_STREAMS, "the list of streams", page, required=("StreamNames", "HasMoreStreams")
            )
            names += answer["StreamNames"]
            if not answer["HasMoreStreams"]:
                return sorted(set(names))
            token = answer.get("NextToken")
            if not token and not answer["StreamNames"]:
                raise KinesisUnavailable("the list of streams: Kinesis says that it has more streams, and lists none")
            page = {"NextToken": token} if token else {"ExclusiveStartStreamName": names[-1]}

    def find(self, stream: str) -> StreamDescription | None:
        """Return the current description of a stream, by its name or ARN; None if it does not exist."""
        try:
            return self._describe(stream, refusals=(_NO_STREAM,))
        except KinesisRefusal:
            return None

    def describe(self, stream: str) -> StreamDescription:
        """Return the current description of a stream, by its name or ARN."""
        return self._describe(stream)

    def _describe(self, stream: str, *, refusals: Collection[str] = ()) -> StreamDescription:
        answer = self.calls(stream).ask(
            KinesisAction.DESCRIBE_STREAM_SUMMARY,
            f"stream {stream!r}",
            stream_argument(stream),
            required=("StreamDescriptionSummary",),
            refusals=refusals,
        )
        summary = answer["StreamDescriptionSummary"]
        try:
            created: datetime = summary["StreamCreationTimestamp"]
            return StreamDescription(
                name=summary["StreamName"],
                arn=summary["StreamARN"],
                created_ms=round(created.timestamp() * 1000),
                retention=timedelta(hours=summary["RetentionPeriodHours"]),
                open_shards=summary["OpenShardCount"],
                encryption_type=summary.get("EncryptionType") or "NONE",
                status=summary["StreamStatus"],
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise KinesisUnavailable(f"stream {stream!r}: the answer to DescribeStreamSummary lacks {error}") from error

    # --- shards ---

    def list_shards(self, stream: str, *, fresh: bool = False) -> dict[str, Shard]:
        """Return all shards of a stream, open and closed ones, by id. The list is at most half a minute old.

        `fresh`: ask Kinesis now, for instance because a shard has ended.
        """
        with self._listing:
            listed_at, shards = self._shards.get(stream, (0.0, None))
            now = self.clock()
            if fresh or shards is None or now - listed_at >= self._shards_max_age_seconds:
                shards = self._list_shards(stream)
                self._shards[stream] = now, shards
        return dict(shards)

    def _list_shards(self, stream: str) -> dict[str, Shard]:
        for _ in range(_LISTING_STARTS):
            try:
                return self._list_all_pages(stream)
            except KinesisRefusal:  # a page was requested too late: start again with the first page
                continue
        raise KinesisUnavailable(f"stream {stream!r}: the pages of ListShards expired {_LISTING_STARTS} times")

    def _list_all_pages(self, stream: str) -> dict[str, Shard]:
        listed: list[Shard] = []
        page: Mapping[str, Any] = stream_argument(stream)
        while True:
            answer = self.calls(stream).ask(
                KinesisAction.LIST_SHARDS, f"stream {stream!r}", page, required=("Shards",), refusals=(_EXPIRED_TOKEN,)
            )
            try:
                listed += [_shard(fields) for fields in answer["Shards"]]
            except (KeyError, TypeError, ValueError) as error:
                raise KinesisUnavailable(f"stream {stream!r}: a shard of ListShards' answer lacks {error}") from error
            token = answer.get("NextToken")
            if not token:
                return by_id(listed)
            page = {"NextToken": token}


def stream_argument(stream: str) -> dict[str, str]:
    """Return botocore's argument for a stream's name or ARN."""
    return {"StreamARN": stream} if stream.startswith("arn:") else {"StreamName": stream}


def _region_of(stream: str) -> str | None:
    """Return the region of an ARN (`arn:aws:kinesis:eu-west-1:123456789012:stream/orders`); None for a name."""
    parts = stream.split(":")
    return parts[3] if stream.startswith("arn:") and len(parts) >= 6 and parts[3] else None


def _shard(fields: Mapping[str, Any]) -> Shard:
    hashes, sequences = fields["HashKeyRange"], fields["SequenceNumberRange"]
    return Shard(
        shard_id=fields["ShardId"],
        first_hash=int(hashes["StartingHashKey"]),
        last_hash=int(hashes["EndingHashKey"]),
        first_sequence=sequences["StartingSequenceNumber"],
        last_sequence=sequences.get("EndingSequenceNumber") or "",
        parent_id=fields.get("ParentShardId") or "",
        adjacent_parent_id=fields.get("AdjacentParentShardId") or "",
    )
