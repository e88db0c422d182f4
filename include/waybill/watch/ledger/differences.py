"""Where a chain and its tables differ: backup objects whose number of messages is not their number of rows.

The ledger searches for them only when a line does not balance, since it reads the objects of that chain and the offsets
of that topic-partition's rows.
"""

from __future__ import annotations

import numpy as np

from waybill.archive.chain.chain import walk_chain
from waybill.archive.chain.object_reader import read_offsets as read_offsets_of_object
from waybill.services.store import Store
from waybill.tables.quarantine.view import View
from waybill.watch.ledger.archived import Chain
from waybill.watch.ledger.balance import Imbalance
from waybill.watch.verify.offsets import by_topic_partition, read_columns

_COLUMNS = ("topic", "partition", "offset", "generation")


def find_differences(store: Store, generation: int, chain: Chain, view: View, progress: int) -> list[Imbalance]:
    """Return the ranges of objects below `progress` whose numbers of messages and rows differ.

    Adjacent ranges are merged.

    Raises `ChainBroken`, or `CorruptBatch` for a damaged object.
    """
    end = min(progress, chain.end_offset)
    objects = [
        (found.name.first_offset, min(found.next_offset, end), found.key)
        for found in walk_chain(store, generation, chain.tp)
        if found.name.first_offset < end
    ]
    starts = np.array([first for first, _, _ in objects], np.int64)
    rows = np.zeros(len(objects), np.int64)
    for table in (view.tables.main, view.tables.quarantine):
        if table.current_snapshot() is None:
            continue
        wanted = f"topic == '{chain.tp.topic}' and partition == {chain.tp.partition}"
        for batch in read_columns(table, _COLUMNS, wanted):
            for tp, of_generation, offsets in by_topic_partition(batch):
                if of_generation == generation:
                    final = offsets[(offsets < end) & ~view.moved.contains(tp, offsets)]
                    np.add.at(rows, np.searchsorted(starts, final, side="right") - 1, 1)
    found: list[tuple[int, int, int, int]] = []
    for (first, following, key), count in zip(objects, rows.tolist(), strict=True):
        messages = sum(
            len(offsets) for offsets in read_offsets_of_object(store, key, first_offset=first, next_offset=following)
        )
        if messages == count:
            continue
        if found and found[-1][1] == first:
            before = found.pop()
            found.append((before[0], following, before[2] + messages, before[3] + count))
        else:
            found.append((first, following, messages, count))
    return [_imbalance(chain, *difference) for difference in found]


def _imbalance(chain: Chain, first: int, following: int, messages: int, rows: int) -> Imbalance:
    what = (
        f"{messages:,} messages were archived there, and the tables have {rows:,}: {abs(messages - rows):,} "
        f"{'missing' if rows < messages else 'too many'}"
    )
    return Imbalance(chain.tp, first, following, what)
