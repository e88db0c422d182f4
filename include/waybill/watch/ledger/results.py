"""Recorded ledgers: a job reads the ledger from time to time, and stores the result for the watch.

The ledger reads a column of all rows, which is too slow for a watch every minute. So the DAG `ledger`, or `waybill
ledger --record`, records it, and the watch reads the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Self

import orjson

from waybill.base.documents import As, Document, Stored
from waybill.config.models import Config
from waybill.config.names import ledger_result_key
from waybill.services.coordination import Coordinator
from waybill.services.store import Store
from waybill.tables.staging.services import StagingServices
from waybill.watch.ledger.balance import Ledger
from waybill.watch.ledger.read import ReadLogEnds, read_ledger

_MOST_IMBALANCES = 20


@dataclass(frozen=True, slots=True)
class LedgerResult(Stored):
    """Whether a ledger balances."""

    DOCUMENT: ClassVar = Document(dump=orjson.dumps)

    made_at_ms: Annotated[int, As("made_at")]
    """When its figures were read. Epoch ms."""
    generation: int
    imbalances: tuple[str, ...] = ()
    """The first twenty, with their offsets."""
    counts: Annotated[Mapping[str, int], As(write=dict, may_lack=True)] = field(default_factory=dict)
    """The sums of `Ledger.counts`; empty in results that an older Waybill stored."""

    @classmethod
    def of(cls, ledger: Ledger) -> Self:
        """Return the result of a ledger."""
        texts = tuple(str(imbalance) for imbalance in ledger.imbalances[:_MOST_IMBALANCES])
        return cls(ledger.made_at_ms, ledger.generation, texts, ledger.counts)

    @classmethod
    def read(cls, store: Store, stream: str) -> Self | None:
        """Return the stored result; None if no ledger was recorded.

        Raises `DocumentTooNew`, `DocumentDamaged` or `StoreUnavailable`.
        """
        key = ledger_result_key(store.prefix, stream)
        content = store.read_if_exists(key)
        return None if content is None else cls.from_json(key, content)

    def write(self, store: Store, stream: str) -> None:
        """Store the result in place of the one before."""
        store.replace(ledger_result_key(store.prefix, stream), self.to_json())


def record_ledger(
    config: Config, name: str, services: StagingServices, coordinator: Coordinator, read_log_ends: ReadLogEnds
) -> Ledger:
    """Read the ledger of stream `name`, store its result for the watch, and return it. Raises as `read_ledger` does.

    If it does not balance, it is read once more, since the result alerts a person: the second result counts.
    """
    for _ in range(2):
        ledger = read_ledger(config, name, services, coordinator.list_committed, read_log_ends)
        if not ledger.imbalances:
            break
    LedgerResult.of(ledger).write(services.store, name)
    return ledger
