"""Jars from Maven repositories, which the Ivy inside pyspark downloads into the cache once, and the logging of servers.

Behind a mirror or proxy: `WAYBILL_IVY_SETTINGS` names an Ivy settings file to use instead of Maven Central, and the JVM
reads `JAVA_TOOL_OPTIONS` as usual (`-Dhttps.proxyHost=… -Dhttps.proxyPort=…`).
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
from waybill.base.errors import StackError

if TYPE_CHECKING:
    from collections.abc import Callable

    from devstack.preflight import Java

_RESOLVE_SECONDS = 900
DIGESTS = Path(__file__).with_name("jars.sha256")
"""The SHA-256 of each jar of the sets of this module, as `sha256sum` prints it."""
TEST_DIGESTS = Path(__file__).with_name("test_jars.sha256")
"""The same of the jars that only tests and benchmarks use."""


@dataclass(frozen=True)
class JarSet:
    """Maven coordinates (`group:artifact:version[:classifier[@extension]]`), resolved with their dependencies.

    A jar with a classifier is resolved without its dependencies: list those as well.
    """

    name: str
    coordinates: tuple[str, ...]
    size_mb: int
    """The approximate size of the download, for the progress message."""

    @property
    def cache_name(self) -> str:
        """The name of its directory in the cache, which depends on the coordinates."""
        digest = hashlib.sha256(" ".join(self.coordinates).encode()).hexdigest()[:12]
        return f"jars-{self.name}-{digest}"


# Kafka logs through SLF4J 1.7. Without a binding of that version a broker that fails would log nothing.
KAFKA = JarSet(
    "kafka",
    ("org.apache.kafka:kafka_2.13:4.1.0", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"),
    size_mb=43,
)

# The same as waybill.tables.spark.catalog.JARS, which users give Spark by spark.jars.packages.
ICEBERG = JarSet(
    "iceberg",
    (
        "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0",
        "org.apache.iceberg:iceberg-aws-bundle:1.11.0",
        "org.xerial:sqlite-jdbc:3.50.3.0",
        "org.postgresql:postgresql:42.7.12",
    ),
    size_mb=128,
)


def pyspark_jars() -> Path:
    """Return the directory of pyspark's own jars: Spark, Ivy, ZooKeeper."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise StackError("pyspark is not installed in this environment. Make it with: make venv")
    return Path(spec.origin).parent / "jars"


def resolve(jar_set: JarSet, java: Java, on_progress: Callable[[str], None] = print) -> Path:
    """Return the directory with all jars of `jar_set`, and download them the first time.

    Raises `StackError` with the end of Ivy's output if a download fails.
    """

    def build(target: Path) -> None:
        on_progress(f"downloading {jar_set.name}'s jars (about {jar_set.size_mb} MB, half a minute, once)")
        _run_ivy(jar_set, java, target)

    def on_wait() -> None:
        on_progress(f"another process is downloading {jar_set.name}'s jars: waiting for it")

    return cached(jar_set.cache_name, build, on_wait)


def _run_ivy(jar_set: JarSet, java: Java, target: Path) -> None:
    # Ivy's own cache is in this directory, too, and is deleted with it: the next download must not find half a jar.
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
            raise StackError(_failure(jar_set, f"Ivy did not end within {_RESOLVE_SECONDS} s")) from error
    # Ivy exits with 0 even if it reports an artifact that it could not download.
    if done.returncode != 0 or "FAILED DOWNLOADS" in done.stdout or not any(target.iterdir()):
        problems = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line or "FAILED" in line]
        tail = "\n".join(f"    {line.strip()}" for line in (problems or (done.stdout + done.stderr).splitlines())[-15:])
        raise StackError(_failure(jar_set, f"Ivy reports:\n{tail}"))
    check_digests(target)


def check_digests(directory: Path) -> None:
    """Compare the files of a directory with their SHA-256 in `jars.sha256` or `test_jars.sha256`.

    Raises `StackError` that names the file which has another one, or which neither lists.
    """
    listed = {
        name: (digest, source.name)
        for source in (TEST_DIGESTS, DIGESTS)
        for digest, name in (line.split() for line in source.read_text().splitlines())
    }
    for file in sorted(directory.iterdir()):
        with file.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        expected, source_name = listed.get(file.name, ("", ""))
        if not expected:
            raise StackError(
                f"{file.name} (SHA-256 {found}) is not in {DIGESTS.name}: check it, and add it there, or to "
                f"{TEST_DIGESTS.name} if only tests use it"
            )
        if expected != found:
            raise StackError(f"{file.name} has SHA-256 {found}, and {source_name} expects {expected}: do not use it")


def _failure(jar_set: JarSet, reason: str) -> str:
    return (
        f"could not download {jar_set.name}'s jars ({', '.join(jar_set.coordinates)}): {reason}\n"
        "Can this machine reach Maven Central? To use a mirror, set WAYBILL_IVY_SETTINGS to an Ivy settings file; "
        "to use a proxy, set JAVA_TOOL_OPTIONS."
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


# --- logging ----------------------------------------------------------------------------------------------------------

_LOG4J_CONFIG = """\
status = warn
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{yyyy-MM-dd HH:mm:ss,SSS} %-5p %c{1}: %m%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
"""


def write_log4j_config(directory: Path) -> Path:
    """Write the logging configuration of a Java server into `directory`, and return its path.

    The server logs to standard output, which the guardian appends to the server's log file.
    """
    path = directory / "log4j2.properties"
    path.write_text(_LOG4J_CONFIG)
    return path
