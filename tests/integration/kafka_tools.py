"""Kafka's own command-line tools, run with Java."""

from __future__ import annotations

import re
import subprocess
from typing import NamedTuple

from devstack import Stack
from devstack.jars import JarSet, resolve

__all__ = ["DescribedPartition", "describe_topic", "run_tool"]

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
    text = run_tool(stack, "TopicCommand", "--describe", "--topic", topic)
    partitions = [
        DescribedPartition(int(match["leader"]), _ids(match["replicas"]), frozenset(_ids(match["in_sync"])))
        for match in _PARTITION.finditer(text)
    ]
    configs = re.search(r"Configs: (\S*)", text)
    # A value may hold commas: `cleanup.policy=compact,delete`.
    pairs = re.findall(r"([a-z.]+)=([^=]*)(?:,|$)", configs[1]) if configs else []
    return partitions, dict(pairs)


def _ids(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(",") if each)
