"""Measure a pass over the promises about the Kafka cluster, with simulated metadata.

    python bench/kafka_health.py [--repeats 5] [--json FILE]

The row `pass`, case `10000`: 10,000 topic-partitions of 100 topics on 12 brokers in 3 racks, of which one is away. The
answers are bytes of Kafka's protocol, made before. A pass decodes all of them, also those that the watch reads every
five minutes only (configs, log directories, timestamps), reads the memory of the watch before, judges all promises, and
makes the memory for the next watch. The network and the brokers are not part of it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from kafka.protocol.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
)
from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from measurement import Case, Sample, argument_parser, print_table, run_cases, run_only_case, write_json

from waybill.config.models import load_config
from waybill.config.names import TopicPartition
from waybill.watch.promises.kafka_figures import KafkaMemory, measure_kafka

BROKERS, RACKS, TOPICS, AWAY = 12, 3, 100, 7
_CONFIG = """\
version: 1
storage: {bucket: waybill}
streams:
  events:
    topics: {regex: "topic-.*"}
    parser: {event_time: {field: time}}
    table: bench.events
"""


class SimulatedCluster:
    """Answers with bytes of Kafka's protocol that were made before."""

    def __init__(self, partitions: int) -> None:
        self.each = partitions // TOPICS
        self.names = [f"topic-{number:03}" for number in range(TOPICS)]
        metadata, configs, quorum = self._metadata(), self._configs(), self._quorum()
        self.answers = {
            MetadataRequest: (MetadataResponse, metadata.encode(version=12), 12),
            DescribeConfigsRequest: (DescribeConfigsResponse, configs.encode(version=4), 4),
            DescribeQuorumRequest: (DescribeQuorumResponse, quorum.encode(version=1), 1),
            DescribeLogDirsRequest: (DescribeLogDirsResponse, self._directories().encode(version=4), 4),
            ListOffsetsRequest: (ListOffsetsResponse, self._timestamps().encode(version=7), 7),
        }
        self.size_bytes = sum(len(data) for _, data, _ in self.answers.values())

    # --- what the readers call ---

    def attempts(self, *_: Any) -> Iterator[None]:
        yield

    def send(self, _: int | None, request: Any) -> type:
        return type(request)

    def wait(self, kind: type, _: float | None = None) -> Any:
        response, data, version = self.answers[kind]
        return response.decode(data, version=version)

    def ask_leaders_briefly(
        self, _: str, tps: Iterable[TopicPartition], build: Callable[..., Any], read: Callable[..., Any]
    ) -> dict[TopicPartition, Any]:
        build(list(tps))
        return {tp: answer for tp, _, answer in read(self.wait(ListOffsetsRequest))}

    # --- answers ---

    def _metadata(self) -> Any:
        topic = MetadataResponse.MetadataResponseTopic
        brokers = [
            MetadataResponse.MetadataResponseBroker(
                node_id=node, host=f"broker-{node}", port=9092, rack=f"r{node % RACKS}"
            )
            for node in range(BROKERS)
            if node != AWAY
        ]
        topics, self.under_replicated = [], 0
        for at, name in enumerate(self.names):
            partitions = []
            for number in range(self.each):
                replicas = [(at + number + step) % BROKERS for step in range(3)]
                live = [node for node in replicas if node != AWAY]
                self.under_replicated += AWAY in replicas
                partitions.append(
                    topic.MetadataResponsePartition(
                        error_code=0,
                        partition_index=number,
                        leader_id=live[0],
                        leader_epoch=5,
                        replica_nodes=replicas,
                        isr_nodes=live,
                        offline_replicas=[AWAY] if AWAY in replicas else [],
                    )
                )
            topics.append(topic(error_code=0, name=name, is_internal=False, partitions=partitions))
        return MetadataResponse(throttle_time_ms=0, brokers=brokers, cluster_id="bench", controller_id=1, topics=topics)

    def _configs(self) -> Any:
        result = DescribeConfigsResponse.DescribeConfigsResult
        values = {"min.insync.replicas": "2", "unclean.leader.election.enable": "false"}
        return DescribeConfigsResponse(
            throttle_time_ms=0,
            results=[
                result(
                    error_code=0,
                    error_message=None,
                    resource_type=2,
                    resource_name=name,
                    configs=[
                        result.DescribeConfigsResourceResult(
                            name=key, value=value, read_only=False, is_sensitive=False, synonyms=[]
                        )
                        for key, value in values.items()
                    ],
                )
                for name in self.names
            ],
        )

    def _quorum(self) -> Any:
        topic = DescribeQuorumResponse.TopicData
        partition = topic.PartitionData
        now_ms = time.time_ns() // 1_000_000
        voters = [
            partition.ReplicaState(
                replica_id=node, log_end_offset=9, last_fetch_timestamp=now_ms, last_caught_up_timestamp=now_ms
            )
            for node in range(3)
        ]
        found = partition(
            partition_index=0,
            error_code=0,
            leader_id=0,
            leader_epoch=1,
            high_watermark=9,
            current_voters=voters,
            observers=[],
        )
        return DescribeQuorumResponse(error_code=0, topics=[topic(topic_name="__cluster_metadata", partitions=[found])])

    def _directories(self) -> Any:
        result = DescribeLogDirsResponse.DescribeLogDirsResult
        share = -(-self.each * 3 // BROKERS)
        topics = [
            result.DescribeLogDirsTopic(
                name=name,
                partitions=[
                    result.DescribeLogDirsTopic.DescribeLogDirsPartition(
                        partition_index=number, partition_size=10**9, offset_lag=0, is_future_key=False
                    )
                    for number in range(share)
                ],
            )
            for name in self.names
        ]
        directory = result(error_code=0, log_dir="/data", topics=topics, total_bytes=10**13, usable_bytes=5 * 10**12)
        return DescribeLogDirsResponse(throttle_time_ms=0, error_code=0, results=[directory])

    def _timestamps(self) -> Any:
        topic = ListOffsetsResponse.ListOffsetsTopicResponse
        return ListOffsetsResponse(
            throttle_time_ms=0,
            topics=[
                topic(
                    name=name,
                    partitions=[
                        topic.ListOffsetsPartitionResponse(
                            partition_index=number, error_code=0, timestamp=1_700_000_000_000, offset=5, leader_epoch=5
                        )
                        for number in range(self.each)
                    ],
                )
                for name in self.names
            ],
        )


def prepare(case: str, _: argparse.Namespace) -> Callable[[], Sample]:
    """Return a pass over a simulated cluster of so many topic-partitions."""
    cluster: Any = SimulatedCluster(int(case))
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "streams.yaml"
        file.write_text(_CONFIG)
        config = load_config(file)
    now_ms = time.time_ns() // 1_000_000
    stored = measure_kafka(config, cluster, KafkaMemory(), now_ms - 600_000).memory.content()

    def work() -> Sample:
        measured = measure_kafka(config, cluster, KafkaMemory.parse(stored), now_ms)
        content = measured.memory.content()
        states = {each.promise: each.value for each in measured.findings}
        under = states["kafka_under_replicated"]
        if under != cluster.under_replicated:
            raise RuntimeError(f"{under} of {cluster.under_replicated} were found")
        return Sample(int(case), cluster.size_bytes, {"memory_bytes": float(len(content))})

    return work


CASES = [Case("pass", "10000", prepare)]


def main() -> None:
    """Parse the command line, run, print."""
    arguments = argument_parser(__doc__).parse_args()
    if arguments.only:
        run_only_case(CASES, arguments)
        return
    rows = run_cases(CASES, arguments)
    columns = {
        "seconds": lambda row: f"{row.seconds:.2f}",
        "CPU seconds": lambda row: f"{row.cpu_seconds:.2f}",
        "answers, bytes": lambda row: f"{row.bytes:,}",
        "memory of the watch, bytes": lambda row: f"{row.extra['memory_bytes']:,.0f}",
    }
    print_table("Promises about the Kafka cluster, one pass", rows, columns)
    write_json(rows, arguments.json)


if __name__ == "__main__":
    main()
