"""Which brokers hold the replicas of a topic-partition.

The scheme is Kafka's (`AdminUtils.assignReplicasToBrokers`, KIP-36), without its random start: with n brokers, the i-th
topic-partition has its first replica on broker i mod n, and its j-th other replica on broker (i + j) mod n. If brokers
have racks, the list of brokers alternates between the racks, and each further replica is in a rack that has the fewest.
If the racks have different numbers of brokers, this rule would give some brokers many more replicas than others. Then
the broker with the fewest replicas of the topic is chosen, among the brokers in such a rack.

`complete` keeps the replicas that are there, and changes as few as possible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from waybill.services.kafka.cluster_state import Broker


def alternate_racks(brokers: Iterable[Broker]) -> list[int]:
    """Return the sorted node ids; if every broker has a rack, alternate between the racks."""
    known = sorted(brokers, key=lambda broker: broker.node_id)
    if not all(broker.rack for broker in known):
        return [broker.node_id for broker in known]
    by_rack: dict[str, list[int]] = {}
    for broker in known:
        by_rack.setdefault(str(broker.rack), []).append(broker.node_id)
    longest = max(map(len, by_rack.values()), default=0)
    return [by_rack[rack][turn] for turn in range(longest) for rack in sorted(by_rack) if turn < len(by_rack[rack])]


def place(
    brokers: Mapping[int, Broker], partitions: int, replication_factor: int, *, start: int = 0
) -> list[tuple[int, ...]]:
    """Return the replicas of each topic-partition of a topic. `start`: the number i of the first topic-partition.

    Raises `ValueError` if there are fewer brokers than replicas.
    """
    order = alternate_racks(brokers.values())
    if replication_factor > len(order):
        raise ValueError(f"{replication_factor} replicas need as many brokers, and there are {len(order)}")
    # Racks are used only if all brokers have one.
    all_known = all(broker.rack for broker in brokers.values())
    racks = {node_id: broker.rack if all_known else None for node_id, broker in brokers.items()}
    racks_are_equal = len(set(Counter(racks.values()).values())) == 1
    placed: Counter[int] = Counter()
    found = []
    for i in range(start, start + partitions):
        candidates = [order[(i + j) % len(order)] for j in range(len(order))]
        replicas = _replicas(candidates, racks, replication_factor, Counter() if racks_are_equal else placed)
        placed.update(replicas)
        found.append(replicas)
    return found


def _replicas(
    candidates: Sequence[int], racks: Mapping[int, str | None], count: int, load: Mapping[int, int]
) -> tuple[int, ...]:
    """Return the first candidate, and others: first from racks with the fewest replicas, then with the least load."""
    chosen = [candidates[0]]
    while len(chosen) < count:
        free = [node_id for node_id in candidates if node_id not in chosen]
        used = Counter(racks[node_id] for node_id in chosen)
        chosen.append(min(free, key=lambda node_id: (used[racks[node_id]], load.get(node_id, 0))))
    return tuple(chosen)


def has_rack_fault(replicas: Sequence[int], brokers: Mapping[int, Broker]) -> bool:
    """Return whether a rack has at least two more replicas than another rack that has a broker without a replica.

    False if a broker is not alive, or has no rack: then its rack is not known.
    """
    if any(node_id not in brokers for node_id in replicas) or not all(broker.rack for broker in brokers.values()):
        return False
    size = Counter(broker.rack for broker in brokers.values())
    used = Counter(brokers[node_id].rack for node_id in replicas)
    return any(used[crowded] > used[rack] + 1 for crowded in used for rack in size if used[rack] < size[rack])


def complete(
    replicas: Sequence[int], replication_factor: int, brokers: Mapping[int, Broker], load: Mapping[int, int]
) -> tuple[int, ...]:
    """Return `replicas`, with brokers added up to the replication factor, and without a rack fault.

    The first replica stays, and so do all others that cause no rack fault. `load`: how many replicas each broker has;
    of several possible brokers, the one with the fewest replicas is chosen. Raises `ValueError` if there are fewer live
    brokers than replicas are needed.
    """
    chosen = list(replicas)
    while len(chosen) < replication_factor:
        chosen.append(_best(chosen, brokers, load))
    while has_rack_fault(chosen, brokers):
        used = Counter(brokers[node_id].rack for node_id in chosen)
        crowded = max(used.values())
        # Remove the last replica in this rack, since the first replica is the preferred leader.
        gone = max(i for i, node_id in enumerate(chosen) if used[brokers[node_id].rack] == crowded)
        rest = chosen[:gone] + chosen[gone + 1 :]
        chosen[gone] = _best(rest, brokers, load, without=chosen[gone])
    return tuple(chosen)


def _best(
    chosen: Sequence[int], brokers: Mapping[int, Broker], load: Mapping[int, int], without: int | None = None
) -> int:
    free = [node_id for node_id in brokers if node_id not in chosen and node_id != without]
    if not free:
        raise ValueError(
            f"it has replicas on {', '.join(map(str, chosen))}, and no other broker is alive for one more: start "
            f"brokers, or lower replication_factor"
        )
    used = Counter(brokers[node_id].rack for node_id in chosen if node_id in brokers)
    return min(free, key=lambda node_id: (used[brokers[node_id].rack], load.get(node_id, 0), node_id))
