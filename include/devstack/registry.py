"""A schema registry for tests: Apicurio, which implements Confluent's REST API, with its schemas in memory."""

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

_VERSION = "2.6.13.Final"
_ARCHIVE = JarSet("registry", (f"io.apicurio:apicurio-registry-app:{_VERSION}:all@tar.gz",), size_mb=142)


def unpacked(java: Java, on_progress: Callable[[str], None] = print) -> Path:
    """Return the directory with the registry's jars, and download it the first time."""
    archive = next(resolve(_ARCHIVE, java, on_progress).glob("*.tar.gz"))

    def build(target: Path) -> None:
        with tarfile.open(archive) as files:
            files.extractall(target, filter="data")

    return cached(f"{_ARCHIVE.cache_name}-unpacked", build)


@dataclass(frozen=True)
class Registry:
    """One schema registry. Its schemas are lost when it ends."""

    java: Java
    home: Path
    """The directory that `unpacked` returns."""
    directory: Path
    port: int

    name = "registry"

    @property
    def url(self) -> str:
        """The base URL of Confluent's API."""
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def specs(self, logs: Path) -> tuple[ServerSpec, ...]:
        """Return the process."""
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

    def why_not_ready(self) -> str | None:
        """Return None if it answers, else the error."""
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=2.0) as answer:
                answer.read()
        except (urllib.error.URLError, OSError) as error:
            return f"the schema registry does not answer: {error}"
        return None
