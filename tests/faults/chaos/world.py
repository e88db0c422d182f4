"""The objects that all scenarios of a run share: the stack, the fork server, the proxies' thread, administrators."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import botocore.session
from botocore.config import Config as BotoConfig
from botocore.credentials import Credentials
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

from chaos.lanes import ForkServer
from chaos.loop import ProxyLoop
from devstack import Stack

_SECONDS = 60.0


@dataclass(frozen=True)
class World:
    """See the module's docstring."""

    stack: Stack
    directory: Path
    """Logs of lanes, configs: a directory for each scenario."""
    lanes: ForkServer
    proxies: ProxyLoop
    s3: Any
    admin: AdminClient
    run: str
    """Keeps the names of this run apart from others'."""

    @property
    def credentials(self) -> Credentials:
        return Credentials(self.stack.s3_access_key, self.stack.s3_secret_key)

    def create_topic(self, topic: str, partitions: int) -> None:
        """With three replicas, so that a leader can die. Returns when every partition has a leader."""
        (future,) = self.admin.create_topics([NewTopic(topic, partitions, 3)], request_timeout=_SECONDS).values()
        future.result(timeout=_SECONDS)
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            found = self.admin.list_topics(topic, timeout=_SECONDS).topics[topic].partitions
            if len(found) == partitions and all(p.leader > 0 for p in found.values()):
                return
            time.sleep(0.05)
        raise AssertionError(f"{topic} has no leaders after {_SECONDS:.0f} s")

    def delete_topic(self, topic: str) -> None:
        """Delete a topic; errors are ignored."""
        self.admin.delete_topics([topic], request_timeout=_SECONDS)

    def leader(self, topic: str, partition: int = 0) -> int:
        """The broker that leads a topic-partition now."""
        return int(self.admin.list_topics(topic, timeout=_SECONDS).topics[topic].partitions[partition].leader)

    def delete_nodes(self, path: str) -> int:
        """Delete a ZooKeeper node and all below it. 1 if it was there."""
        client = KazooClient(hosts=self.stack.zookeeper_hosts, timeout=5.0)
        with contextlib.suppress(KazooException, client.handler.timeout_exception):
            client.start(timeout=5.0)
            try:
                if client.exists(path):
                    client.delete(path, recursive=True)
                    return 1
            finally:
                client.stop()
                client.close()
        return 0


@contextmanager
def open_world(stack: Stack, directory: Path, *preload: str) -> Iterator[World]:
    """Everything is closed, and no process is left, at the end of the block. `preload`: see `ForkServer`."""
    with ExitStack() as exits:
        lanes = exits.enter_context(ForkServer(*preload))
        proxies = exits.enter_context(ProxyLoop())
        s3 = botocore.session.get_session().create_client(
            "s3",
            region_name="us-east-1",
            endpoint_url=stack.s3_endpoint_url,
            aws_access_key_id=stack.s3_access_key,
            aws_secret_access_key=stack.s3_secret_key,
            config=BotoConfig(
                s3={"addressing_style": "path"}, retries={"mode": "standard", "total_max_attempts": 8}, proxies={}
            ),
        )
        exits.callback(s3.close)
        admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers, "log_level": 0})
        yield World(stack, directory, lanes, proxies, s3, admin, uuid.uuid4().hex[:6])
