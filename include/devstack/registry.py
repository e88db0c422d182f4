"""A schema registry: Apicurio, which speaks Confluent's REST API, with its schemas in memory. For tests."""

from __future__ import annotations

import tarfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING

from devstack.cache import cached
from devstack.jars import JarSet, resolve
from devstack.servers import ServerSpec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from devstack.preflight import Java

__all__ = ["Registry", "unpacked"]

_VERSION = "2.6.13.Final"
_ARCHIVE = JarSet("registry", (f"io.apicurio:apicurio-registry-app:{_VERSION}:all@tar.gz",), size_mb=142)


def unpacked(java: Java, on_progress: Callable[[str], None] = print) -> Path:
    """The directory with the registry's jars; downloads it the first time."""
    archive = next(resolve(_ARCHIVE, java, on_progress).glob("*.tar.gz"))

    def build(target: Path) -> None:
        with tarfile.open(archive) as files:
            files.extractall(target, filter="data")

    return cached(f"{_ARCHIVE.cache_name}-unpacked", build)


@dataclass(frozen=True)
class Registry:
    """One registry. Its schemas are gone when it ends."""

    java: Java
    home: Path
    """See `unpacked`."""
    directory: Path
    port: int

    name = "registry"

    @property
    def url(self) -> str:
        """Where Confluent's API is."""
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def specs(self, logs: Path) -> tuple[ServerSpec, ...]:
        """The one process."""
        self.directory.mkdir(parents=True, exist_ok=True)
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": self.port,
            "quarkus.management.enabled": "false",
            "quarkus.log.level": "WARN",
        }
        command = (
            *(str(self.java.binary), "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *(f"-D{key}={value}" for key, value in settings.items()),
            *("-jar", str(self.home / f"apicurio-registry-app-{_VERSION}-runner.jar")),
        )
        return (ServerSpec(self.name, command, logs / f"{self.name}.log", self.directory),)

    def missing(self) -> str | None:
        """None once it answers."""
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=2.0) as answer:
                answer.read()
        except (urllib.error.URLError, OSError) as error:
            return f"the schema registry does not answer: {error}"
        return None
