"""The committed offsets that Pinterest's Secor keeps in ZooKeeper, to import them when Waybill replaces Secor.

Secor stores them in the format of Kafka's old consumers (Secor's `ZookeeperConnector`): the node
`<kafka.zookeeper.path>/consumers/<group>/offsets/<topic>/<partition>` holds the next offset, in ASCII. Waybill only
reads these nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from kazoo.exceptions import AuthFailedError, KazooException, NoAuthError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from waybill.base.errors import ConfigError, CoordinationUnavailable
from waybill.config.connections import ZooKeeperEndpoint
from waybill.config.names import TopicPartition, is_topic
from waybill.services.clients.zookeeper import ZooKeeperClient

_SESSION_SECONDS = 10.0


def read_secor_offsets(
    endpoint: ZooKeeperEndpoint, path: str, group: str | None, is_wanted: Callable[[str], bool]
) -> dict[TopicPartition, int]:
    """Return a group's next offsets in the topics for which `is_wanted` is true. `path` is `kafka.zookeeper.path`.

    With `group` None, use the only group that has offsets of such topics. Raises `ConfigError` if no group has any, if
    several groups have, or if a node does not hold an offset; `CoordinationUnavailable` when ZooKeeper does not answer.
    """
    client = ZooKeeperClient(endpoint, _SESSION_SECONDS)
    client.connect()
    try:
        return _OffsetNodes(client, f"/{path.strip('/')}".rstrip("/")).read(group, is_wanted)
    except (NoAuthError, AuthFailedError) as error:
        raise ConfigError(f"ZooKeeper at {endpoint.where}: not allowed to read Secor's offsets at {path}") from error
    except (KazooException, KazooTimeoutError) as error:
        raise CoordinationUnavailable(
            f"ZooKeeper at {endpoint.where}: could not read Secor's offsets ({type(error).__name__})"
        ) from error
    finally:
        client.stop()
        client.close()


class _OffsetNodes:
    def __init__(self, client: ZooKeeperClient, path: str) -> None:
        self._client = client
        self._consumers = f"{path}/consumers"

    def read(self, group: str | None, is_wanted: Callable[[str], bool]) -> dict[TopicPartition, int]:
        groups = self._list_children(self._consumers) if group is None else [group]
        offsets_by_group = {name: dict(self._read_group(name, is_wanted)) for name in groups}
        offsets_by_group = {name: offsets for name, offsets in offsets_by_group.items() if offsets}
        if not offsets_by_group:
            where = f"{self._consumers}/{group or '<group>'}/offsets"
            raise ConfigError(
                f"ZooKeeper has no offsets of the stream's topics at {where}: give Secor's kafka.zookeeper.path, and "
                f"its group by --group"
            )
        if len(offsets_by_group) > 1:
            names = ", ".join(offsets_by_group)
            raise ConfigError(f"several groups have offsets of the stream's topics ({names}): give --group")
        return next(iter(offsets_by_group.values()))

    def _read_group(self, group: str, is_wanted: Callable[[str], bool]) -> Iterator[tuple[TopicPartition, int]]:
        parent = f"{self._consumers}/{group}/offsets"
        for topic in self._list_children(parent):
            if not is_topic(topic) or not is_wanted(topic):
                continue
            for partition in self._list_children(f"{parent}/{topic}"):
                node = f"{parent}/{topic}/{partition}"
                data = bytes(self._client.retry(self._client.get, node)[0])
                if not (partition.isdecimal() and data.strip().isdigit()):
                    raise ConfigError(f"ZooKeeper node {node} holds {data[:40]!r}, which is no offset of Secor's")
                yield TopicPartition(topic, int(partition)), int(data)

    def _list_children(self, path: str) -> list[str]:
        with suppress(NoNodeError):
            return sorted(self._client.retry(self._client.get_children, path))
        return []
