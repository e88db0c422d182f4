"""One ZooKeeper server, from the jars that pyspark contains."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from devstack.jars import pyspark_jars, write_log4j_config
from devstack.servers import ServerSpec

if TYPE_CHECKING:
    from pathlib import Path

    from devstack.preflight import Java

# The server needs a tenth of pyspark's 280 jars, and the JVM opens each jar of its class path.
_JARS = (
    "zookeeper-*",
    "netty-*",
    "slf4j-api-*",
    "log4j-api-*",
    "log4j-core-*",
    "log4j-slf4j2-impl-*",
    "snappy-java-*",
    "metrics-core-*",
    "commons-io-*",
    "commons-cli-*",
)


@dataclass(frozen=True)
class ZooKeeper:
    """A single ZooKeeper server with its state in `directory`."""

    java: Java
    directory: Path
    port: int
    settings: Mapping[str, object] = field(default_factory=dict)
    """More lines of zoo.cfg, such as those for TLS."""

    name = "zookeeper"

    @property
    def hosts(self) -> str:
        """The server's address, such as `127.0.0.1:23456`."""
        return f"127.0.0.1:{self.port}"

    def specs(self, logs: Path) -> tuple[ServerSpec, ...]:
        """Write the configuration, and return the process."""
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        settings = {
            "dataDir": data,
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "tickTime": 1000,
            "minSessionTimeout": 2000,
            "maxSessionTimeout": 60000,
            "maxClientCnxns": 0,
            "4lw.commands.whitelist": "ruok,srvr,stat,mntr,cons",
            "admin.enableServer": "false",
            # Only processes are killed here, not machines, so what is in the page cache is not lost.
            "forceSync": "no",
            **self.settings,
        }
        config = self.directory / "zoo.cfg"
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        log4j = write_log4j_config(self.directory)
        jars = pyspark_jars()
        class_path = ":".join(str(jar) for pattern in _JARS for jar in sorted(jars.glob(f"{pattern}.jar")))
        command = (
            *(str(self.java.binary), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *(f"-Dlog4j2.configurationFile={log4j}", "-Dzookeeper.jmx.log4j.disable=true", "-cp", class_path),
            *("org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config)),
        )
        return (ServerSpec("zookeeper", command, logs / "zookeeper.log", self.directory),)

    def why_not_ready(self) -> str | None:
        """Return None if it serves requests, else what is missing.

        It asks for the server's mode with `srvr`: the server answers `imok` to `ruok` before it serves requests.
        """
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2.0) as connection:
                connection.sendall(b"srvr")
                answer = connection.makefile("rb").read()
        except OSError as error:
            return f"ZooKeeper does not answer: {error}"
        return None if b"Mode: standalone" in answer else f"ZooKeeper answers {answer[:100]!r} to srvr"
