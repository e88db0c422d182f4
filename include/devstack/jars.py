"""Jars from Maven repositories, resolved once into the cache by the Ivy that ships inside pyspark.

Behind a mirror or proxy: `WAYBILL_IVY_SETTINGS` names an Ivy settings file to use instead of Maven Central, and
`JAVA_TOOL_OPTIONS` reaches the JVM as usual (`-Dhttps.proxyHost=… -Dhttps.proxyPort=…`).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

from devstack.cache import cached
from waybill.errors import StackError

if TYPE_CHECKING:
    from collections.abc import Callable

    from devstack.preflight import Java

__all__ = ["ICEBERG", "KAFKA", "JarSet", "pyspark_jars", "resolve"]

_RESOLVE_SECONDS = 900


@dataclass(frozen=True)
class JarSet:
    """Maven coordinates (`group:artifact:version[:classifier[@extension]]`), resolved together with what they need.

    A jar with a classifier comes without what its module depends on: name that as well.
    """

    name: str
    coordinates: tuple[str, ...]
    size_mb: int
    """About what is downloaded, for the user to know."""

    @property
    def cache_name(self) -> str:
        """The directory in the cache: it changes with the coordinates."""
        digest = hashlib.sha256(" ".join(self.coordinates).encode()).hexdigest()[:12]
        return f"jars-{self.name}-{digest}"


# Kafka logs through SLF4J 1.7, and without a binding of that version a broker that fails would say nothing.
KAFKA = JarSet(
    "kafka",
    ("org.apache.kafka:kafka_2.13:4.1.0", "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3"),
    size_mb=43,
)

# What a user gives Spark by spark.jars.packages: waybill.spark.catalog.JARS.
ICEBERG = JarSet(
    "iceberg",
    (
        "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0",
        "org.apache.iceberg:iceberg-aws-bundle:1.11.0",
        "org.xerial:sqlite-jdbc:3.50.3.0",
        "org.postgresql:postgresql:42.7.8",
    ),
    size_mb=128,
)


def pyspark_jars() -> Path:
    """The directory of pyspark's own jars: Spark, Ivy, ZooKeeper."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise StackError("pyspark is not installed in this environment. Make it with: make venv")
    return Path(spec.origin).parent / "jars"


def resolve(jar_set: JarSet, java: Java, on_progress: Callable[[str], None] = print) -> Path:
    """The directory that holds all jars of `jar_set`; downloads them the first time.

    Raises `StackError` with the end of Ivy's output when a download fails.
    """

    def build(target: Path) -> None:
        on_progress(f"downloading {jar_set.name}'s jars (about {jar_set.size_mb} MB, half a minute, once)")
        _run_ivy(jar_set, java, target)

    def on_wait() -> None:
        on_progress(f"another process is downloading {jar_set.name}'s jars: waiting for it")

    return cached(jar_set.cache_name, build, on_wait)


def _run_ivy(jar_set: JarSet, java: Java, target: Path) -> None:
    # Ivy's own cache is thrown away with this directory: a killed download must not leave a half jar for the next one.
    with tempfile.TemporaryDirectory(prefix="ivy-", dir=target.parent) as scratch:
        module = Path(scratch) / "ivy.xml"
        module.write_text(_ivy_module(jar_set))
        settings = os.environ.get("WAYBILL_IVY_SETTINGS")
        if settings is None:
            settings = str(Path(scratch) / "settings.xml")
            Path(settings).write_text(_CENTRAL)
        command = [
            *(str(java.binary), f"-Divy.cache.dir={scratch}/cache", "-cp", f"{pyspark_jars()}/*"),
            *("org.apache.ivy.Main", "-settings", settings, "-cache", f"{scratch}/cache", "-ivy", str(module)),
            *("-retrieve", f"{target}/[artifact]-[revision](-[classifier]).[ext]", "-confs", "default"),
            *("-types", "jar", "bundle", "tar.gz"),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_RESOLVE_SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise StackError(_failure(jar_set, f"no end after {_RESOLVE_SECONDS} s")) from error
    # Ivy reports an artifact that it could not download, and then exits with 0.
    if done.returncode != 0 or "FAILED DOWNLOADS" in done.stdout or not any(target.iterdir()):
        problems = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line or "FAILED" in line]
        tail = "\n".join(f"    {line.strip()}" for line in (problems or (done.stdout + done.stderr).splitlines())[-15:])
        raise StackError(_failure(jar_set, f"Ivy says:\n{tail}"))


def _failure(jar_set: JarSet, reason: str) -> str:
    return (
        f"could not download {jar_set.name}'s jars ({', '.join(jar_set.coordinates)}): {reason}\n"
        "Is Maven Central within reach? A mirror goes into an Ivy settings file, named by WAYBILL_IVY_SETTINGS; "
        "a proxy into JAVA_TOOL_OPTIONS."
    )


_CENTRAL = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""


def _ivy_module(jar_set: JarSet) -> str:
    modules: dict[tuple[str, str, str], list[str]] = {}
    for coordinate in jar_set.coordinates:
        group, artifact, version, *classifier = coordinate.split(":")
        modules.setdefault((group, artifact, version), []).append("".join(classifier))
    return "\n".join(
        [
            f'<ivy-module version="2.0" xmlns:m="{_MAVEN_EXTRA}">',
            f'  <info organisation="waybill" module={quoteattr(jar_set.name)}/>',
            '  <configurations><conf name="default"/></configurations>',
            "  <dependencies>",
            *(_dependency(*module, classifiers) for module, classifiers in modules.items()),
            "  </dependencies>",
            "</ivy-module>",
        ]
    )


_MAVEN_EXTRA = "http://ant.apache.org/ivy/maven"


def _dependency(group: str, artifact: str, version: str, classifiers: list[str]) -> str:
    transitive = str("" in classifiers).lower()
    start = (
        f"    <dependency org={quoteattr(group)} name={quoteattr(artifact)} rev={quoteattr(version)}"
        f' conf="default->default" transitive="{transitive}"'
    )
    if classifiers == [""]:
        return f"{start}/>"
    artifacts = (_artifact(artifact, *classifier.partition("@")[::2]) for classifier in classifiers)
    return "\n".join([f"{start}>", *artifacts, "    </dependency>"])


def _artifact(name: str, classifier: str, extension: str) -> str:
    extension = quoteattr(extension or "jar")
    classified = f" m:classifier={quoteattr(classifier)}" if classifier else ""
    return f"      <artifact name={quoteattr(name)} type={extension} ext={extension}{classified}/>"
