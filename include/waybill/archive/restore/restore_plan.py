"""The plan of a restore: which offsets of the archive go to which topic-partitions, and the producer that sends them.

The plan is an object that is created if absent, and is never changed. Every process that executes the restore (a retry,
a rival, another machine) sends the same messages with the same producer id, so that the target's leaders accept each
message once (docs/decisions/0026-restore.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

from waybill.base.documents import Document
from waybill.base.errors import RestoreRefused
from waybill.config.names import TopicPartition, check_restore_id, restore_plan_key, restores_prefix
from waybill.records.batches.produced import Producer
from waybill.services.store import Store

_DOCUMENT = Document(
    "{where} is not a valid plan of a restore ({kind}: {error}): restore it from the bucket's versions, or plan "
    "another restore into another topic",
    version=2,  # 2: `warnings`
)
_OBJECT = "/plan.json"


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """One topic-partition of the archive, and where its messages go."""

    topic: str
    partition: int
    first_offset: int
    next_offset: int
    """The end of the archived range, which is not included."""
    target_topic: str
    target_offset: int
    """The end of the target's log when the restore was planned: the offset of the first restored message."""
    size_bytes: int
    """Size of the backup objects of the range."""

    @property
    def source(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def target(self) -> TopicPartition:
        return TopicPartition(self.target_topic, self.partition)


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """A restore, as it was requested."""

    id: str
    stream: str
    generation: int
    connection: str
    """The Airflow connection of the target cluster."""
    topic_ids: Mapping[str, str]
    """Kafka's ids of the target's topics: a topic that was created again is another topic."""
    producer_id: int
    producer_epoch: int
    partitions: tuple[PartitionPlan, ...]
    by: str
    reason: str
    at: datetime
    suspended: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    """By target topic: the configs that are changed during the restore, with the values that are set at its end."""
    warnings: tuple[str, ...] = ()
    """The warnings of the preflight, including the differences between a created topic and the archived one."""

    @property
    def producer(self) -> Producer:
        return Producer(self.producer_id, self.producer_epoch)

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.partitions)

    def document(self) -> dict[str, Any]:
        """Return the fields as they are stored and printed, without the document's version."""
        return {
            "id": self.id,
            "stream": self.stream,
            "generation": self.generation,
            "connection": self.connection,
            "topic_ids": dict(self.topic_ids),
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
            "partitions": [asdict(each) for each in self.partitions],
            "by": self.by,
            "reason": self.reason,
            "at": self.at.isoformat(),
            "suspended": {topic: dict(config) for topic, config in self.suspended.items()},
            "warnings": list(self.warnings),
        }

    def to_json(self) -> bytes:
        """Return the plan's object, with `"v": 2`."""
        return _DOCUMENT.write(self.document())

    @classmethod
    def from_json(cls, key: str, content: bytes) -> Self:
        """Parse what `to_json` returned.

        Raises `DocumentTooNew` for a plan of a newer version of Waybill, `DocumentDamaged` for one that cannot be
        parsed.
        """
        return _DOCUMENT.parse(key, content, cls._of_fields)

    @classmethod
    def _of_fields(cls, fields: dict[str, Any]) -> Self:
        fields.pop("v")
        fields["partitions"] = tuple(PartitionPlan(**each) for each in fields["partitions"])
        fields["warnings"] = tuple(fields.get("warnings", ()))
        fields["at"] = datetime.fromisoformat(fields["at"]).astimezone(UTC)
        return cls(**fields)


def find_plan(store: Store, restore: str) -> RestorePlan:
    """Return the plan of a restore. Raises `RestoreRefused` if there is none, or `restore` is no id."""
    try:
        key = restore_plan_key(store.prefix, check_restore_id(restore))
    except ValueError as error:
        raise RestoreRefused(str(error)) from None
    content = store.read_if_exists(key)
    if content is None:
        raise RestoreRefused(f"there is no restore {restore}; `waybill restore status` lists them")
    return RestorePlan.from_json(key, content)


def list_plans(store: Store) -> Iterator[RestorePlan]:
    """Yield the plans of all restores, in order of their ids."""
    for key in store.keys(restores_prefix(store.prefix)):
        if key.endswith(_OBJECT):
            yield RestorePlan.from_json(key, store.read(key))
