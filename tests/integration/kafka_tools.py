"""Kafka's own command-line tools, run with Java."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from devstack import Stack
from devstack.jars import JarSet, resolve
from devstack.preflight import Java

_TOOLS = JarSet("kafka-tools", ("org.apache.kafka:kafka-tools:4.1.0",), size_mb=40)
_PARTITION = re.compile(
    r"Partition: (?P<number>\d+)\s+Leader: (?P<leader>\S+)\s+Replicas: (?P<replicas>[\d,]+)\s+Isr: (?P<in_sync>[\d,]*)"
)


class DescribedPartition(NamedTuple):
    """A line of `kafka-topics.sh --describe`."""

    leader: int
    replicas: tuple[int, ...]
    in_sync: frozenset[int]


def run_tool(stack: Stack, tool: str, *arguments: str) -> str:
    """Run a class of `org.apache.kafka.tools` on the stack, and return what it printed."""
    jars = resolve(_TOOLS, stack.java)
    command = [str(stack.java.binary), "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*"]
    command += [f"org.apache.kafka.tools.{tool}", "--bootstrap-server", stack.bootstrap_servers, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def describe_topic(stack: Stack, topic: str) -> tuple[list[DescribedPartition], dict[str, str]]:
    """Return the partitions and the configs of a topic, as `kafka-topics.sh --describe` prints them."""
    return describe_topics(stack, re.escape(topic))[topic]


def describe_topics(stack: Stack, pattern: str) -> dict[str, tuple[list[DescribedPartition], dict[str, str]]]:
    """Return the partitions and the configs of all topics whose name matches a pattern, by name."""
    text = run_tool(stack, "TopicCommand", "--describe", "--topic", pattern)
    found: dict[str, tuple[list[DescribedPartition], dict[str, str]]] = {}
    for line in text.splitlines():
        topic = re.search(r"Topic: (\S+)", line)
        if topic is None:
            continue
        partitions, configs = found.setdefault(topic[1], ([], {}))
        if match := _PARTITION.search(line):
            in_sync = frozenset(_ids(match["in_sync"]))
            partitions.append(DescribedPartition(int(match["leader"]), _ids(match["replicas"]), in_sync))
        elif match := re.search(r"Configs: (\S*)", line):
            # A value may hold commas: `cleanup.policy=compact,delete`.
            configs.update(re.findall(r"([a-z.]+)=([^=]*)(?:,|$)", match[1]))
    return found


def propose_replicas(java: Java, clusters: Sequence[tuple[int, int, Sequence[str]]]) -> list[list[tuple[int, ...]]]:
    """Return the placement of `kafka-reassign-partitions.sh --generate` for clusters that need not exist.

    Each is given as the partitions and the replication factor of a topic, and the racks of the brokers 0, 1, 2 ….
    """
    program = Path(__file__).with_name("ProposeReplicas.java")
    command = [str(java.binary), "-XX:TieredStopAtLevel=1", "-cp", f"{resolve(_TOOLS, java)}/*", str(program)]
    lines = "".join(f"{partitions} {factor} {','.join(racks)}\n" for partitions, factor, racks in clusters)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [[_ids(each) for each in line.split(";")] for line in done.stdout.splitlines()]


def _ids(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(",") if each)
