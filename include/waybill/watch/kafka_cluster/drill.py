"""A drill: end brokers, compare what happens with the forecast, and start them again."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from waybill.base.errors import ConfigError, KafkaUnavailable
from waybill.config.models import IsolationLevel
from waybill.config.names import TopicPartition
from waybill.services.kafka.cluster import Cluster
from waybill.services.kafka.cluster_state import ClusterState, TopicPartitionReplicas, fetch_cluster_state
from waybill.services.kafka.kafka import KafkaSource
from waybill.watch.kafka_cluster.what_if import Forecast, OutageEffect, PartitionForecast, TopicRules, observe

logger = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.5
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""For SIGINT, Python raises `KeyboardInterrupt` itself."""


class BrokerControl(Protocol):
    """Ends and starts brokers."""

    def kill(self, node_id: int) -> None: ...

    def start(self, node_id: int) -> None: ...

    def start_text(self, node_id: int) -> str:
        """Return the command with which a person starts a broker."""
        ...


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    """The forecast of a topic-partition, and its state after the brokers ended."""

    forecast: PartitionForecast
    effect: OutageEffect
    leader: int
    """-1 if no leader answers."""

    @property
    def is_as_forecast(self) -> bool:
        expected = self.forecast
        return self.effect is expected.effect and (
            self.effect is OutageEffect.OFFLINE or self.leader == expected.leader
        )


@dataclass(frozen=True, slots=True)
class DrillReport:
    """The outcome of a drill."""

    outcomes: list[PartitionOutcome]
    settled_seconds: float | None
    """Seconds from the end of the brokers until the state matched the forecast; None: it never did."""
    recovered_seconds: float | None
    """Seconds from the start of the brokers until all replicas were in sync as before; None: not within the timeout."""

    @property
    def is_as_forecast(self) -> bool:
        return all(outcome.is_as_forecast for outcome in self.outcomes)


def run_drill(
    cluster: Cluster,
    before: ClusterState,
    expected: Forecast,
    rules: Callable[[str], TopicRules],
    breaker: BrokerControl,
    *,
    timeout_seconds: float,
) -> DrillReport:
    """End the brokers of a forecast, compare, and start them again, also after an error or a signal.

    `rules` returns the rules of a topic. Raises `KafkaUnavailable` when no broker is left to ask at the end, and
    `ConfigError` when a command failed; it names each broker that did not start.
    """
    killed: list[int] = []
    ended_by: BaseException | None = None
    with _signals_raise():
        try:
            for node_id in expected.lost:
                killed.append(node_id)
                breaker.kill(node_id)
            outcomes, settled = _wait_for_forecast(cluster, before, expected, rules, timeout_seconds)
        except BaseException as error:
            ended_by = error
            raise
        finally:
            _start_all(breaker, killed, ended_by)
    recovered = _wait_for_recovery(cluster, before, {each.tp for each in expected.partitions}, timeout_seconds)
    return DrillReport(outcomes, settled, recovered)


def _start_all(breaker: BrokerControl, killed: Sequence[int], ended_by: BaseException | None) -> None:
    """Start all brokers. Raises `ConfigError` that names those that did not start.

    A signal interrupts the start of one broker; the others are started nevertheless.
    """
    failed: dict[int, str] = {}
    for node_id in killed:
        try:
            breaker.start(node_id)
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            failed[node_id] = str(error) or type(error).__name__
    if failed:
        why = "" if ended_by is None else f" The drill ended early: {ended_by or type(ended_by).__name__}."
        lines = [f"  broker {node_id} ({reason}): {breaker.start_text(node_id)}" for node_id, reason in failed.items()]
        raise ConfigError("\n".join([f"some brokers did not start.{why} Start them by hand:", *lines]))


@contextmanager
def _signals_raise() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise `SystemExit`, so that they do not end the process before brokers are started."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _exit) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit(number: int, _: Any) -> NoReturn:
    raise SystemExit(f"ended by {signal.Signals(number).name}")


def _wait_for_forecast(
    cluster: Cluster,
    before: ClusterState,
    expected: Forecast,
    rules: Callable[[str], TopicRules],
    timeout_seconds: float,
) -> tuple[list[PartitionOutcome], float | None]:
    """Return the outcomes as soon as they match the forecast, else the last ones, and the seconds that this took."""
    began = time.monotonic()
    while True:
        outcomes = _observe_all(cluster, before, expected, rules)
        seconds = time.monotonic() - began
        if all(outcome.is_as_forecast for outcome in outcomes):
            return outcomes, seconds
        if seconds > timeout_seconds:
            return outcomes, None
        time.sleep(_PAUSE_SECONDS)


def _observe_all(
    cluster: Cluster, before: ClusterState, expected: Forecast, rules: Callable[[str], TopicRules]
) -> list[PartitionOutcome]:
    live = set(before.brokers) - set(expected.lost)
    tps = [each.tp for each in expected.partitions]
    now, answering = _ask(cluster, tps)
    outcomes = []
    for each in expected.partitions:
        partition = now.get(each.tp)
        answers = each.tp in answering
        if partition is None:
            outcomes.append(PartitionOutcome(each, OutageEffect.OFFLINE, -1))
            continue
        effect = observe(before.partitions[each.tp], partition, live, rules(each.tp.topic), answers=answers)
        outcomes.append(PartitionOutcome(each, effect, partition.leader if answers else -1))
    return outcomes


def _ask(
    cluster: Cluster, tps: Collection[TopicPartition]
) -> tuple[Mapping[TopicPartition, TopicPartitionReplicas], set[TopicPartition]]:
    """Return the partitions that a live broker describes, and those whose leader answers."""
    try:
        state = fetch_cluster_state(cluster)
        led = [tp for tp in tps if tp in state.partitions and state.partitions[tp].has_leader]
        source = KafkaSource.sharing(cluster, IsolationLevel.READ_UNCOMMITTED)
        cluster.describe_topics({tp.topic for tp in led})  # so that no request goes to an earlier leader
        return state.partitions, set(source.ends_briefly(led))
    except KafkaUnavailable as error:
        logger.info("no broker answers: %s", error)
        return {}, set()


def _wait_for_recovery(
    cluster: Cluster, before: ClusterState, tps: Collection[TopicPartition], timeout_seconds: float
) -> float | None:
    """Wait until the replicas that were in sync before are in sync again, and return the seconds."""
    began = time.monotonic()
    while True:
        now = fetch_cluster_state(cluster)
        missing = [tp for tp in tps if not _is_recovered(before, now, tp)]
        seconds = time.monotonic() - began
        if not missing:
            return seconds
        if seconds > timeout_seconds:
            return None
        time.sleep(_PAUSE_SECONDS)


def _is_recovered(before: ClusterState, now: ClusterState, tp: TopicPartition) -> bool:
    partition = now.partitions.get(tp)
    return (
        partition is not None
        and partition.has_leader
        and set(before.partitions[tp].in_sync) <= set(partition.in_sync) & set(now.brokers)
    )
