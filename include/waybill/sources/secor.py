"""The committed offsets that Pinterest's Secor keeps in ZooKeeper, for who moves over to Waybill.

`<kafka.zookeeper.path>/consumers/<group>/offsets/<topic>/<partition>`, as the old consumers of Kafka kept theirs: the
next offset, in ASCII (Secor's `ZookeeperConnector`). They are only read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from kazoo.exceptions import AuthFailedError, KazooException, NoAuthError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from waybill.clients.zookeeper import ZooKeeperClient
from waybill.connections import ZooKeeperEndpoint
from waybill.errors import ConfigError, CoordinationUnavailable
from waybill.names import TopicPartition, is_topic

__all__ = ["read_secor_offsets"]

_SESSION_SECONDS = 10.0


def read_secor_offsets(
    endpoint: ZooKeeperEndpoint, path: str, group: str | None, wanted: Callable[[str], bool]
) -> dict[TopicPartition, int]:
    """The next offsets of a group's topics that are `wanted`. `path` is Secor's `kafka.zookeeper.path`.

    Without a group, the only one that has offsets of such topics. Raises `ConfigError` if there is none, or several to
    choose from, or a node does not hold an offset; `CoordinationUnavailable` when ZooKeeper does not answer.
    """
    client = ZooKeeperClient(endpoint, _SESSION_SECONDS)
    client.connect()
    try:
        return _Nodes(client, f"/{path.strip('/')}".rstrip("/")).offsets(group, wanted)
    except (NoAuthError, AuthFailedError) as error:
        raise ConfigError(f"ZooKeeper at {endpoint.where}: not allowed to read Secor's offsets at {path}") from error
    except (KazooException, KazooTimeoutError) as error:
        raise CoordinationUnavailable(
            f"ZooKeeper at {endpoint.where}: could not read Secor's offsets ({type(error).__name__})"
        ) from error
    finally:
        client.stop()
        client.close()


class _Nodes:
    def __init__(self, client: ZooKeeperClient, path: str) -> None:
        self._client = client
        self._consumers = f"{path}/consumers"

    def offsets(self, group: str | None, wanted: Callable[[str], bool]) -> dict[TopicPartition, int]:
        found = {name: dict(self._of_group(name, wanted)) for name in self._groups(group)}
        found = {name: offsets for name, offsets in found.items() if offsets}
        if not found:
            where = f"{self._consumers}/{group or '<group>'}/offsets"
            raise ConfigError(
                f"ZooKeeper has no offsets of the stream's topics at {where}: give Secor's kafka.zookeeper.path, and "
                f"its group by --group"
            )
        if len(found) > 1:
            raise ConfigError(f"several groups have offsets of the stream's topics ({', '.join(found)}): give --group")
        return next(iter(found.values()))

    def _groups(self, group: str | None) -> list[str]:
        return self._children(self._consumers) if group is None else [group]

    def _of_group(self, group: str, wanted: Callable[[str], bool]) -> Iterator[tuple[TopicPartition, int]]:
        parent = f"{self._consumers}/{group}/offsets"
        for topic in self._children(parent):
            if not is_topic(topic) or not wanted(topic):
                continue
            for partition in self._children(f"{parent}/{topic}"):
                node = f"{parent}/{topic}/{partition}"
                data = bytes(self._client.retry(self._client.get, node)[0])
                if not (partition.isdecimal() and data.strip().isdigit()):
                    raise ConfigError(f"ZooKeeper node {node} holds {data[:40]!r}: no offset of Secor's")
                yield TopicPartition(topic, int(partition)), int(data)

    def _children(self, path: str) -> list[str]:
        with suppress(NoNodeError):
            return sorted(self._client.retry(self._client.get_children, path))
        return []
