"""The paths of ZooKeeper's nodes, without the connection's chroot."""

from __future__ import annotations

from dataclasses import dataclass

from waybill.config.names import TopicPartition, check_stream_name, check_topic, join_segments


@dataclass(frozen=True, slots=True)
class ZkPaths:
    """The ZooKeeper nodes of one stream and generation, below `root`."""

    root: str
    stream: str
    generation: int

    @property
    def base(self) -> str:
        """The parent of all nodes."""
        return f"/{join_segments(self.root, 'streams', check_stream_name(self.stream), str(self.generation))}"

    @property
    def offsets(self) -> str:
        """The parent of the committed offsets: its children are topics, and theirs are partition numbers."""
        return f"{self.base}/offsets"

    def committed_offset(self, tp: TopicPartition) -> str:
        """Return the node of a committed offset."""
        return f"{self.offsets}/{check_topic(tp.topic)}/{tp.partition}"

    def slot_read(self, tp: TopicPartition) -> str:
        """Return the node that says up to when a Kinesis slot was read."""
        return f"{self.base}/reads/{check_topic(tp.topic)}/{tp.partition}"

    def lock(self, tp: TopicPartition) -> str:
        """Return the node of a topic-partition's lock."""
        return f"{self.base}/locks/{check_topic(tp.topic)}/{tp.partition}"

    def chore(self, name: str) -> str:
        """Return the node that records when a chore was last claimed."""
        return f"{self.base}/chores/{name}"

    @property
    def stops(self) -> str:
        """The parent of the journal of named stops."""
        return f"{self.base}/stops"

    def slot_map(self, topic: str) -> str:
        """Return the node of the copy of a Kinesis stream's slot map."""
        return f"{self.base}/slots/{check_topic(topic)}"

    def stop(self, tp: TopicPartition) -> str:
        """Return the node of the journal that holds a topic-partition's named stop."""
        return f"{self.stops}/{check_topic(tp.topic)}/{tp.partition}"


def pauses_path(root: str, stream: str) -> str:
    """Return the node of the decisions to pause or resume a stream. They hold for all generations."""
    return f"/{join_segments(root, 'pauses', check_stream_name(stream))}"


def group_problems_path(root: str, group: str) -> str:
    """Return the node of the problems that the last run of a group found."""
    return f"/{join_segments(root, 'groups', check_stream_name(group), 'problems')}"


def watch_path(root: str) -> str:
    """Return the node of the incidents that the watch has found."""
    return f"/{join_segments(root, 'watch', 'incidents')}"


def watch_parts_path(root: str, *names: str) -> str:
    """Return the parent of the parts of a large book of incidents, or, with a name, one part."""
    return f"/{join_segments(root, 'watch', 'incident-parts', *names)}"


def usage_path(root: str, *names: str) -> str:
    """Return the parent of all days of usage, or, with a day and a process's name, the node with its usage."""
    return f"/{join_segments(root, 'usage', *names)}"
