"""The shards of a Kinesis stream, and their parents.

A split closes one shard and opens two children. A merge closes two shards and opens one child, which names one of them
as its parent and the other one as its adjacent parent. The records of a partition key are in one shard at each moment,
so they are in order if every shard is read after all of its parents.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard as ListShards returns it."""

    shard_id: str
    first_hash: int
    """The range of MD5 hashes of partition keys is `[first_hash, last_hash]`."""
    last_hash: int
    first_sequence: str
    """The shard's sequence numbers begin here: a decimal number of up to 128 bits, as text."""
    last_sequence: str = ""
    """The last sequence number of the shard's range; '' while it is open. There may be no record with it."""
    parent_id: str = ""
    """'' for a shard of the stream's creation."""
    adjacent_parent_id: str = ""
    """The second parent of a merge, else ''."""

    @property
    def is_closed(self) -> bool:
        """Whether a split or merge has ended it. Its records stay readable until retention removes them."""
        return bool(self.last_sequence)

    @property
    def parents(self) -> tuple[str, ...]:
        """Return the ids of its parents: none, one, or two. ListShards may not list them any more."""
        return tuple(parent for parent in (self.parent_id, self.adjacent_parent_id) if parent)


def by_id(shards: Iterable[Shard]) -> dict[str, Shard]:
    """Return the shards by their ids."""
    return {shard.shard_id: shard for shard in shards}


def parents_first(shards: Mapping[str, Shard]) -> Iterator[Shard]:
    """Yield all shards, each after its listed parents, else in order of their ids."""
    done: set[str] = set()
    for first in sorted(shards):
        stack = [first]
        while stack:
            current = shards[stack[-1]]
            missing = [parent for parent in current.parents if parent in shards and parent not in done]
            if missing and current.shard_id not in done:
                stack += reversed(missing)
                continue
            stack.pop()
            if current.shard_id not in done:
                done.add(current.shard_id)
                yield current
