"""The records of messages that a person orders to publish again: who, when, why, and which messages.

The records of a chain are numbered, and each is created if absent. So if two people give the same order at the same
time, there is one record, and no offset is in two records, unless a person abandons a record and orders its offsets
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Self

from waybill.base.decision import Decision
from waybill.base.documents import As, Document, Stored, readable
from waybill.base.errors import RestoreRefused
from waybill.config.names import TopicPartition, republish_abandoned_key, republish_done_key, republish_key
from waybill.replay.republish.truncations import EpochRun
from waybill.services.store import Store


@dataclass(frozen=True, slots=True)
class Abandoned(Stored):
    """The decision to leave a record unfinished. Some of its messages may have been published."""

    DOCUMENT: ClassVar = Document(
        "{where} is not a valid decision about published messages ({kind}: {error}): restore it from the bucket's "
        "versions",
        converts=True,
        dump=readable,
    )

    by: str
    reason: str
    at_ms: Annotated[int, As("at")]


@dataclass(frozen=True, slots=True)
class Republished(Stored):
    """The record of archived messages that are being published again, or will be."""

    DOCUMENT: ClassVar = Document(
        "{where} is not a valid record of published messages ({kind}: {error}): restore it from the bucket's versions",
        dump=readable,
    )

    tp: TopicPartition
    generation: int
    number: int
    runs: tuple[EpochRun, ...]
    by: str
    reason: str
    at_ms: int
    delivery: Mapping[str, Any]
    """The state of the delivery before its first message (`TopicDelivery.state`): its producer id, and the ends of the
    logs. Every run for this record starts from this state, so the leader refuses messages that it already has."""
    is_done: bool = False
    abandoned: Abandoned | None = None
    """None also for a record that is done."""

    @property
    def is_unfinished(self) -> bool:
        """Whether the next run of `waybill kafka republish` goes on with the record."""
        return not self.is_done and self.abandoned is None

    def to_fields(self) -> dict[str, Any]:
        return {
            "topic": self.tp.topic,
            "partition": self.tp.partition,
            "generation": self.generation,
            "number": self.number,
            "runs": [list(run) for run in self.runs],
            "by": self.by,
            "reason": self.reason,
            "at": self.at_ms,
            "delivery": dict(self.delivery),
        }

    @classmethod
    def of_fields(cls, where: str, fields: Mapping[str, Any]) -> Self:  # noqa: ARG003 - as `Stored` has it
        return cls(
            TopicPartition(str(fields["topic"]), int(fields["partition"])),
            int(fields["generation"]),
            int(fields["number"]),
            tuple(EpochRun(*map(int, run)) for run in fields["runs"]),
            str(fields["by"]),
            str(fields["reason"]),
            int(fields["at"]),
            dict(fields["delivery"]),
        )


_DONE = Document("", dump=readable)
"""The mark that all messages of a record are published. Only the existence of the object is read."""


def list_records(store: Store, generation: int, tp: TopicPartition) -> list[Republished]:
    """Return the records of a chain, in order."""
    found: list[Republished] = []
    while True:
        number = len(found)
        key = republish_key(store.prefix, tp.topic, generation, tp.partition, number)
        data = store.read_if_exists(key)
        if data is None:
            return found
        done = store.exists(republish_done_key(store.prefix, tp.topic, generation, tp.partition, number))
        abandoned = None if done else _find_abandoned(store, generation, tp, number)
        found.append(replace(Republished.from_json(key, data), is_done=done, abandoned=abandoned))


def _find_abandoned(store: Store, generation: int, tp: TopicPartition, number: int) -> Abandoned | None:
    key = republish_abandoned_key(store.prefix, tp.topic, generation, tp.partition, number)
    data = store.read_if_exists(key)
    return None if data is None else Abandoned.from_json(key, data)


def create_record(
    store: Store,
    generation: int,
    tp: TopicPartition,
    number: int,
    runs: Sequence[EpochRun],
    decision: Decision,
    at_ms: int,
    delivery: Mapping[str, Any],
) -> Republished | None:
    """Store a record. Returns None if another record has the number: then list the records again."""
    record = Republished(tp, generation, number, tuple(runs), decision.by, decision.reason, at_ms, delivery)
    key = republish_key(store.prefix, tp.topic, generation, tp.partition, number)
    return record if store.create_or_read_existing(key, record.to_json()) is None else None


def record_done(store: Store, record: Republished, at_ms: int, messages: int) -> None:
    """Store that all messages of a record are published."""
    tp = record.tp
    key = republish_done_key(store.prefix, tp.topic, record.generation, tp.partition, record.number)
    store.create_or_read_existing(key, _DONE.write({"at": at_ms, "messages": messages}))


def abandon(store: Store, generation: int, tp: TopicPartition, number: int, decision: Decision, at_ms: int) -> None:
    """Store the decision to leave a record unfinished. The first decision about a record is in force.

    Raises `RestoreRefused` if there is no such record, or if it is done.
    """
    records = list_records(store, generation, tp)
    if not 0 <= number < len(records):
        unfinished = ", ".join(str(each.number) for each in records if each.is_unfinished) or "none"
        raise RestoreRefused(f"{tp}: there is no publication {number}; unfinished are: {unfinished}")
    if records[number].is_done:
        raise RestoreRefused(f"{tp}: all messages of publication {number} are published, so it cannot be abandoned")
    key = republish_abandoned_key(store.prefix, tp.topic, generation, tp.partition, number)
    store.create_or_read_existing(key, Abandoned(decision.by, decision.reason, at_ms).to_json())


def abandoned_runs(runs: Sequence[EpochRun], records: Sequence[Republished]) -> list[EpochRun]:
    """Return the parts of runs that are only in abandoned records: some of these messages may have been published."""
    free = not_recorded(runs, records)
    return _subtract(not_recorded(runs, [each for each in records if each.abandoned is None]), free)


def not_recorded(runs: Iterable[EpochRun], records: Iterable[Republished]) -> list[EpochRun]:
    """Return the parts of runs that are in no record."""
    return _subtract(runs, [taken for record in records for taken in record.runs])


def _subtract(runs: Iterable[EpochRun], all_taken: Iterable[EpochRun]) -> list[EpochRun]:
    left = list(runs)
    for taken in all_taken:
        left = [part for run in left for part in _without(run, taken)]
    return left


def _without(run: EpochRun, taken: EpochRun) -> list[EpochRun]:
    before = run._replace(next_offset=min(run.next_offset, taken.first_offset))
    after = run._replace(first_offset=max(run.first_offset, taken.next_offset))
    if before.next_offset == run.next_offset or after.first_offset == run.first_offset:
        return [run]  # they do not overlap
    return [part for part in (before, after) if part.first_offset < part.next_offset]
