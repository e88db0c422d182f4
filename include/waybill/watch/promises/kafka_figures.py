"""The Kafka cluster in the watch: the readings that are stored for the next watch, and the findings."""

from __future__ import annotations

import gzip
import logging
from dataclasses import dataclass, field
from typing import Self

import orjson

from waybill.base.documents import read_document
from waybill.base.errors import DocumentTooNew
from waybill.config.models import Config
from waybill.services.kafka.cluster import Cluster
from waybill.watch.incidents.failures import Failures
from waybill.watch.incidents.finding import Finding
from waybill.watch.kafka_cluster.group_health import Commits, follow_commits
from waybill.watch.kafka_cluster.health import Seen, Subjects, health_findings
from waybill.watch.kafka_cluster.isr_history import IsrHistory, classify
from waybill.watch.kafka_cluster.quorum_health import QuorumTroubles, follow_quorum
from waybill.watch.kafka_cluster.readings import Readings, SlowReadings, WantedReadings, read_cluster

logger = logging.getLogger(__name__)

_VERSION = 1


@dataclass(frozen=True, slots=True)
class KafkaMemory:
    """The readings that the watch stores about the cluster."""

    history: IsrHistory = field(default_factory=IsrHistory)
    commits: Commits = field(default_factory=dict)
    slow: SlowReadings = field(default_factory=SlowReadings)
    quorum: QuorumTroubles = field(default_factory=dict)

    @classmethod
    def parse(cls, content: bytes | None) -> Self:
        """Return the stored memory; an empty one if it cannot be read, since states then only seem to begin later."""
        if content is None:
            return cls()
        try:
            fields = read_document(gzip.decompress(content), _VERSION, "the watch's memory of Kafka")
            return cls(
                IsrHistory.parse(fields["history"]),
                {group: (int(committed), int(since)) for group, (committed, since) in fields["commits"].items()},
                SlowReadings.parse(fields["slow"]),
                {voter: int(since) for voter, since in fields.get("quorum", {}).items()},
            )
        except (DocumentTooNew, AttributeError, KeyError, TypeError, ValueError, OSError) as error:
            logger.warning("the watch begins without a memory of Kafka: the stored one cannot be read: %s", error)
            return cls()

    def content(self) -> bytes:
        """Return the document that `parse` reads."""
        document = {
            "v": _VERSION,
            "history": self.history.document(),
            "commits": dict(self.commits),
            "slow": self.slow.document(),
            "quorum": dict(self.quorum),
        }
        return gzip.compress(orjson.dumps(document), compresslevel=1)


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
