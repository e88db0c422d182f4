"""Set, change and remove the replication throttle of copies that Waybill starts, also after a crash.

Kafka has a throttle in two places. The topic's configs name the replicas under it, and two configs of each broker hold
the rate. Neither shows who set it. So Waybill stores a record in S3 (`kafka/throttles/`) before it sets a throttle, and
removes the record last. A rate without a record was set by an operator, and is not changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from waybill.base import failpoints
from waybill.base.documents import As, Document, Stored, spaced
from waybill.base.errors import ConfigError
from waybill.config.models.kafka_topics import THROTTLED_REPLICAS
from waybill.config.names import throttle_key, throttles_prefix
from waybill.services.kafka.cluster import Cluster
from waybill.services.kafka.cluster_state import fetch_cluster_state
from waybill.services.kafka.topic_changes import Resource, change_configs, fetch_broker_configs
from waybill.services.kafka.topic_configs import fetch_own_configs
from waybill.services.store import Store
from waybill.watch.kafka_cluster.topics_plan import ReplicaMove

_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")


@dataclass(frozen=True, slots=True)
class _ThrottleRecord(Stored):
    """That Waybill may have set a throttle: for the copies of a topic, with this rate on these brokers."""

    DOCUMENT: ClassVar = Document(
        "{where} is not a valid record of a throttle ({kind}: {error}): restore it from the bucket's versions; or "
        "remove it, and remove the throttle with kafka-configs.sh",
        dump=spaced,
    )

    key: Annotated[str, As(is_place=True)]
    topic: str
    brokers: Annotated[frozenset[int], As("", frozenset, sorted)]
    rate_bytes: Annotated[int, As(read=int)]
    """Bytes per second."""


def throttled_topics(store: Store) -> frozenset[str]:
    """Return the topics for which a record exists: Waybill set a throttle, and has not removed it yet."""
    return frozenset(record.topic for record in _read_records(store))


class Throttle:
    """Sets and removes the throttle of one `waybill kafka apply`."""

    def __init__(self, cluster: Cluster, store: Store, rate_bytes: int | None, report: Callable[[str], None]) -> None:
        """`rate_bytes`: bytes per second that each broker sends and receives for copies. None: no limit."""
        self._cluster = cluster
        self._store = store
        self._rate = rate_bytes
        self._report = report

    def limit(self, topic: str, moves: Sequence[ReplicaMove]) -> None:
        """Set the throttle for copies that are about to start, and for no other replicas.

        A broker keeps a rate that an operator set. Raises `ConfigError` if the topic itself has a throttle that Waybill
        did not set.
        """
        records = _read_records(self._store)
        if self._rate is None:
            self.remove(topic)
            return
        own = fetch_own_configs(self._cluster, [topic]).get(topic, {})
        foreign = [name for name in THROTTLED_REPLICAS if name in own]
        if foreign and not any(record.topic == topic for record in records):
            raise ConfigError(
                f"topic {topic} has {foreign[0]}={own[foreign[0]]}, which Waybill did not set. Remove it "
                f"(kafka-configs.sh --alter --delete-config), or run `waybill kafka apply --throttle none`"
            )
        brokers = self._without_foreign_rates({node for move in moves for node in (*move.before, *move.added)}, records)
        self._record(topic, brokers, self._rate)
        sending = [f"{move.tp.partition}:{node_id}" for move in moves for node_id in move.before]
        receiving = [f"{move.tp.partition}:{node_id}" for move in moves for node_id in move.added]
        replicas = dict(zip(THROTTLED_REPLICAS, (",".join(sending), ",".join(receiving)), strict=True))
        change_configs(self._cluster, Resource.TOPIC, topic, replicas)
        self._set_rates(brokers)
        failpoints.reach("topics.throttled")

    def adjust(self, topic: str) -> None:
        """Set the rate of this `apply` for copies that are running, if Waybill set their throttle."""
        records = _read_records(self._store)
        own = [record for record in records if record.topic == topic]
        if not own:
            return
        if self._rate is None:
            self._report("  the throttle is removed: the copies go on without a limit")
            self.remove(topic)
            return
        brokers = self._without_foreign_rates({node for record in own for node in record.brokers}, records)
        if {record.rate_bytes for record in own} != {self._rate}:
            self._report(f"  the throttle of the copies is {self._rate:,} bytes per second from now on")
            self._record(topic, brokers, self._rate)
        self._set_rates(brokers)

    def remove(self, topic: str) -> None:
        """Remove the throttle for the copies of a topic.

        Throttles of other topics, and rates of operators, are not changed.
        """
        records = _read_records(self._store)
        own = [record for record in records if record.topic == topic]
        if not own:
            return
        needed = {node for record in records if record.topic != topic for node in record.brokers}
        brokers = {node for record in own for node in record.brokers} - needed
        rates = self._rates(brokers)
        for node_id, limits in rates.items():
            if limits and _is_recorded(node_id, limits, own):
                change_configs(self._cluster, Resource.BROKER, str(node_id), dict.fromkeys(limits))
        for node_id in sorted(brokers - rates.keys()):
            # It limits nothing: no replica of the topic is under a throttle any more.
            self._report(
                f"  broker {node_id} does not answer, and keeps its throttle. When it is back, remove "
                f"{' and '.join(_RATES)} with kafka-configs.sh"
            )
        if fetch_cluster_state(self._cluster, [topic]).topic_partitions(topic):
            change_configs(self._cluster, Resource.TOPIC, topic, dict.fromkeys(THROTTLED_REPLICAS))
        for record in own:
            self._store.remove(record.key)

    def _without_foreign_rates(self, brokers: set[int], records: Sequence[_ThrottleRecord]) -> list[int]:
        """Return the sorted brokers for which no operator has set a rate."""
        found = []
        rates = self._rates(brokers)
        for node_id in sorted(brokers - rates.keys()):
            self._report(f"  broker {node_id} does not answer: what it sends and receives is not limited")
        for node_id, limits in sorted(rates.items()):
            if limits and not _is_recorded(node_id, limits, records):
                shown = ", ".join(f"{name}={value}" for name, value in sorted(limits.items()))
                self._report(f"  broker {node_id} keeps the throttle that it has, which Waybill did not set: {shown}")
            else:
                found.append(node_id)
        return found

    def _rates(self, brokers: set[int]) -> dict[int, dict[str, str]]:
        """Return the rates that are set for brokers, without brokers that do not answer."""
        alive = fetch_cluster_state(self._cluster, []).brokers.keys()
        return fetch_broker_configs(self._cluster, sorted(brokers & alive), _RATES)

    def _set_rates(self, brokers: Sequence[int]) -> None:
        for node_id in brokers:
            change_configs(self._cluster, Resource.BROKER, str(node_id), dict.fromkeys(_RATES, str(self._rate)))

    def _record(self, topic: str, brokers: Sequence[int], rate_bytes: int) -> None:
        content = _ThrottleRecord("", topic, frozenset(brokers), rate_bytes).to_json()
        at_ms = time.time_ns() // 1_000_000
        while self._store.create_or_read_existing(throttle_key(self._store.prefix, topic, at_ms), content) is not None:
            at_ms += 1  # another person applies the config at the same time


def _read_records(store: Store) -> list[_ThrottleRecord]:
    """Return all records. Raises `DocumentDamaged` if one cannot be read."""
    found = []
    for key in sorted(store.keys(throttles_prefix(store.prefix))):
        content = store.read_if_exists(key)
        if content is not None:  # else another `apply` has just removed it
            found.append(_ThrottleRecord.from_json(key, content))
    return found


def _is_recorded(node_id: int, limits: Mapping[str, str], records: Sequence[_ThrottleRecord]) -> bool:
    """Return whether Waybill set all these rates of a broker, by its records."""
    rates = {str(record.rate_bytes) for record in records if node_id in record.brokers}
    return set(limits.values()) <= rates
