"""Stored documents: what their readers do with damaged JSON."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Sequence
from functools import cache

from sample_status import sample_status

from fuzzers.engine import Target
from fuzzers.mutation import Mutator
from waybill.archive.chain.chain import ChainStart
from waybill.archive.chain.gaps import Gap, GapKind
from waybill.archive.chain.topic_settings import TopicSettings
from waybill.archive.restore.restore_plan import RestorePlan as RestorePlan
from waybill.base.errors import DocumentDamaged, DocumentTooNew
from waybill.config.names import TopicPartition
from waybill.replay.republish.records import Abandoned, Republished
from waybill.replay.requests.request import Requested
from waybill.services.coordination.nodes import CommittedOffset, Stop
from waybill.tables.audit.decisions import HoldDecision
from waybill.tables.audit.results import Audit
from waybill.tables.backfill.request import BackfillRequest
from waybill.tables.dedup.sweep_plan import SweepPlan
from waybill.tables.partition.partition_plan import Plan
from waybill.watch.promises.kafka_figures import KafkaMemory
from waybill.watch.promises.samples import Samples
from waybill.watch.promises.status import WatchStatus
from waybill.watch.promises.volumes import Volumes

_TP = TopicPartition("orders", 1)
_GAP = Gap(_TP, 1, 5, 9, GapKind.RETENTION, "why", "ada", 1_700_000_000_000, {"lost": 4})
_KEY = _GAP.name.key("p")

_READERS: dict[str, Callable[[bytes], object]] = {
    "gap": lambda data: Gap.from_json(_KEY, data),
    "topic": lambda data: TopicSettings.from_json(_KEY, data),
    "start": lambda data: ChainStart.from_json(_KEY, data),
    "committed": lambda data: CommittedOffset.from_document(data, 1, _KEY),
    "stop": lambda data: Stop.from_document(_TP, data, _KEY),
    "decision": lambda data: HoldDecision.from_json(_KEY, data),
    "audit": lambda data: Audit.from_json(_KEY, data),
    "plan": lambda data: Plan.from_json(_KEY, data),
    "sweep": lambda data: SweepPlan.from_json(_KEY, data),
    "backfill": lambda data: BackfillRequest.from_json(_KEY, data),
    "restore": lambda data: RestorePlan.from_json(_KEY, data),
    "abandoned": lambda data: Abandoned.from_json(_KEY, data),
    "republished": lambda data: Republished.from_json(_KEY, data),
    "replay": lambda data: Requested.from_json(_KEY, data.decode(errors="replace")),
    "samples": lambda data: Samples.parse(gzip.compress(data, 1)),
    "volumes": lambda data: Volumes.parse(gzip.compress(data, 1)),
    "kafka": lambda data: KafkaMemory.parse(gzip.compress(data, 1)),
    "status": lambda data: WatchStatus.parse(gzip.compress(data, 1), _KEY),
}
"""The readers by a name. Those of the watch's own figures document no error: the watch begins to count again."""
_NAMES = list(_READERS)

_LIKE_ALL = {
    "v": 1, "stream": "orders", "generation": 1, "topic": "orders", "topic_id": "x", "partition": 1, "partitions": 1,
    "config": {"a": "b"}, "offsets": {"orders/1": 5}, "at": 1, "at_ms": 1, "by": "ada", "reason": "r", "kind": "release",
    "created_at": "2026-01-01T00:00:00+00:00", "start": {"orders/1": 0}, "end": {"orders/1": 5}, "tasks": [[]], "faults": {},
    "committed_offset": 5, "leader_epoch": 1, "object_bytes": 1, "object_messages": 1, "committed_at": 1, "figures": {"a": 1},
    "checkpoint": {"shard": {"at": "after_sequence", "sequence": "5"}}, "counts": {"messages": 1}, "streams": {}, "samples": [],
    "offset": 5, "first_offset": 5, "next_offset": 9, "results": [], "history": {}, "commits": {"g": [1, 2]}, "slow": {},
}  # fmt: skip
"""A document with the fields of many: each reader gets further than to a first field that is missing."""


@cache
def _corpus() -> list[bytes]:
    status = gzip.decompress(sample_status().content())
    settings = TopicSettings("orders", "id", 3, {"a": "b"}).to_json()
    committed = CommittedOffset(5, "id", 1, 1, 1, 1).to_document()
    return [_GAP.to_json(), settings, committed, status, *[json.dumps(_LIKE_ALL).encode()] * 3, b'{"v": 2}']


_VALUES = [
    b"null",
    b"[]",
    b"{}",
    b'""',
    b"-1",
    b"1e999",
    b"1.5",
    b"true",
    b'"x"',
    b"[1]",
    b"[[]]",
    b'{"a":1}',
    b"9" * 30,
    b"9" * 5000,
]
_VALUES += [
    b'"2026-13-01"',
    b'"\\ud800"',
    b"\xff",
    b"[" * 3_000,
    b'"v":99,',
    b"1" * 20,
    '"orders/٣"'.encode(),
    b'"/"',
    b'"a/-1"',
]


def _make(chance: random.Random) -> bytes:
    """Return the number of a reader, and a document."""
    number = chance.randrange(len(_NAMES))
    found = chance.choice(_corpus())
    if chance.random() < 0.6:
        document = json.loads(found)
        for _ in range(chance.choice([1, 1, 2, 3])):
            if document:
                document[chance.choice(list(document))] = "@@"
        found = json.dumps(document).encode()
        while b'"@@"' in found:
            found = found.replace(b'"@@"', chance.choice(_VALUES), 1)
    else:
        found = Mutator([found], _VALUES).changed(found, chance)
    return bytes([number]) + found


def _check(inputs: Sequence[bytes]) -> None:
    """Invariant: a document, or `DocumentDamaged` or `DocumentTooNew` with its name, of bounded size."""
    for given in inputs:
        if not given:
            continue
        name = _NAMES[given[0] % len(_NAMES)]
        try:
            _READERS[name](given[1:])
        except (DocumentDamaged, DocumentTooNew) as error:
            shown = str(error)
            assert _KEY in shown, f"{name}: {shown[:500]}"
            assert len(shown) < 20_000, f"{name}: an error of {len(shown):,} characters"


DOCUMENTS = Target("documents", _make, _check)
