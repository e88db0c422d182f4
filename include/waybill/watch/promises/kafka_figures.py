"""The Kafka cluster in the watch: the readings that are stored for the next watch, and the findings."""

from __future__ import annotations

import gzip
from dataclasses import dataclass, field
from typing import Any, Self

from waybill.base.documents import Document, gzipped
from waybill.config.models import Config
from waybill.services.kafka.cluster import Cluster
from waybill.watch.incidents.failures import Failures
from waybill.watch.incidents.finding import Finding
from waybill.watch.kafka_cluster.group_health import Commits, follow_commits
from waybill.watch.kafka_cluster.health import Seen, Subjects, health_findings
from waybill.watch.kafka_cluster.isr_history import IsrHistory, classify
from waybill.watch.kafka_cluster.quorum_health import QuorumTroubles, follow_quorum
from waybill.watch.kafka_cluster.readings import Readings, SlowReadings, WantedReadings, read_cluster

_DOCUMENT = Document(
    "the watch begins without a memory of Kafka: the stored one cannot be read: {error}",
    name="the watch's memory of Kafka",
    dump=gzipped,
    unpack=gzip.decompress,
)


@dataclass(frozen=True, slots=True)
class KafkaMemory:
    """The readings that the watch stores about the cluster."""

    history: IsrHistory = field(default_factory=IsrHistory)
    commits: Commits = field(default_factory=dict)
    slow: SlowReadings = field(default_factory=SlowReadings)
    quorum: QuorumTroubles = field(default_factory=dict)

    @classmethod
    def parse(cls, content: bytes | None) -> Self:
        """Return the stored memory; an empty one if it cannot be read, since states are then only dated later."""
        return _DOCUMENT.remembered(content, cls._of_fields, cls)

    @classmethod
    def _of_fields(cls, fields: dict[str, Any]) -> Self:
        return cls(
            IsrHistory.parse(fields["history"]),
            {group: (int(committed), int(since)) for group, (committed, since) in fields["commits"].items()},
            SlowReadings.parse(fields["slow"]),
            {voter: int(since) for voter, since in fields.get("quorum", {}).items()},
        )

    def content(self) -> bytes:
        """Return the document that `parse` reads."""
        fields = {
            "history": self.history.document(),
            "commits": dict(self.commits),
            "slow": self.slow.document(),
            "quorum": dict(self.quorum),
        }
        return _DOCUMENT.write(fields)


@dataclass(frozen=True, slots=True)
class KafkaMeasured:
    """The findings about the cluster, and their inputs."""

    findings: list[Finding]
    readings: Readings
    memory: KafkaMemory


def subjects_of(config: Config) -> Subjects:
    """Return the streams and topics that the promises about Kafka concern."""
    streams = {name: stream for name, stream in config.streams.items() if not stream.is_kinesis}
    return Subjects(
        config.kafka.promises,
        config.kafka.topics,
        {name: stream.matches for name, stream in streams.items()},
        {name: stream.topics for name, stream in streams.items() if isinstance(stream.topics, tuple)},
    )


def measure_kafka(
    config: Config, cluster: Cluster, memory: KafkaMemory, now_ms: int, failures: Failures
) -> KafkaMeasured:
    """Read the cluster, and return the findings. Raises `KafkaUnavailable` when no broker answers."""
    subjects = subjects_of(config)
    topics = {*subjects.declared, *(topic for listed in subjects.listed.values() for topic in listed)}
    committed = {group: added_up for group, (added_up, _) in memory.commits.items()}
    wanted = WantedReadings(subjects.streams, topics, config.kafka.promises.groups, memory.commits, committed)
    readings = read_cluster(cluster, memory.slow, wanted, now_ms, failures)
    seen = Seen(
        memory.history.followed(classify(readings.state, readings.slow.rules), now_ms),
        follow_commits(memory.commits, readings.groups, now_ms),
        follow_quorum(memory.quorum, readings.quorum, readings.quorum_error, now_ms),
    )
    findings = health_findings(subjects, readings, seen, now_ms, failures)
    return KafkaMeasured(findings, readings, KafkaMemory(seen.history, seen.commits, readings.slow, seen.quorum))
