"""The S3 server: versitygw if Go is installed (a real server, persistent), else moto's server (in memory).

Both refuse a put and a multipart completion with `If-None-Match: *` if the object exists. The commit protocol relies on
that.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from devstack.cache import cache_dir, cached
from devstack.servers import ServerSpec
from waybill.base.errors import StackError

if TYPE_CHECKING:
    from collections.abc import Callable

REGION = "us-east-1"
_MODULE = Path(__file__).with_name("versitygw")
"""A Go module that requires versitygw in this version, with the hash of each module in its go.sum."""
_PACKAGE = "github.com/versity/versitygw/cmd/versitygw"
_VERSITYGW_VERSION = "v1.8.0"
_BUILD_SECONDS = 900


class S3Kind(StrEnum):
    """The program that serves S3."""

    VERSITYGW = "versitygw"
    MOTO = "moto"


@dataclass(frozen=True)
class S3Program:
    """The program that serves S3, and its path."""

    kind: S3Kind
    binary: Path


def choose_server(on_progress: Callable[[str], None] = print) -> S3Program:
    """Return versitygw, which the first call builds (a minute or two), or moto's server, and report why."""
    if "WAYBILL_S3_SERVER" in os.environ:
        return _named(os.environ["WAYBILL_S3_SERVER"], on_progress)
    if shutil.which("go") is None and not _built().exists():
        on_progress("S3 is moto's server, in memory: there is no `go` on PATH to build versitygw")
        return _moto()
    try:
        return _versitygw(on_progress)
    except StackError as error:
        on_progress(f"S3 is moto's server, in memory: {error}")
        return _moto()


def _named(kind: str, on_progress: Callable[[str], None]) -> S3Program:
    if kind not in list(S3Kind):
        raise StackError(f"WAYBILL_S3_SERVER is {kind!r}; it must be {' or '.join(S3Kind)}")
    return _moto() if kind == S3Kind.MOTO else _versitygw(on_progress)


def _moto() -> S3Program:
    return S3Program(S3Kind.MOTO, Path(sys.executable).with_name("moto_server"))


def _cache_name() -> str:
    return f"versitygw-{_VERSITYGW_VERSION}"


def _built() -> Path:
    return cache_dir() / _cache_name() / "versitygw"


def _versitygw(on_progress: Callable[[str], None]) -> S3Program:
    def build(target: Path) -> None:
        on_progress(f"building versitygw {_VERSITYGW_VERSION}, the S3 server (a minute or two, once)")
        _go_build(target)

    def on_wait() -> None:
        on_progress("another process is building versitygw: waiting for it")

    return S3Program(S3Kind.VERSITYGW, cached(_cache_name(), build, on_wait) / "versitygw")


def _go_build(target: Path) -> None:
    # Go compares each module with its hash in go.sum, and `-mod=readonly` refuses one that is not there.
    command = ["go", "build", "-mod=readonly", "-o", str(target / "versitygw"), _PACKAGE]
    try:
        done = subprocess.run(command, cwd=_MODULE, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StackError(f"`go build {_PACKAGE}` failed: {error}") from error
    if done.returncode != 0:
        raise StackError(f"`go build {_PACKAGE}` failed: {done.stderr.strip()[-500:]}")


@dataclass(frozen=True)
class S3Server:
    """One S3 server with its state in `directory`."""

    program: S3Program
    directory: Path
    port: int
    access_key: str
    secret_key: str
    bucket: str

    name = "s3"

    @property
    def connection_options(self) -> dict[str, str]:
        """What the extra of a connection to this server needs besides its address: moto's compares no checksum."""
        return {"checksums": "none"} if self.program.kind is S3Kind.MOTO else {}

    @property
    def endpoint_url(self) -> str:
        """The base URL, such as `http://127.0.0.1:23456`."""
        return f"http://127.0.0.1:{self.port}"

    def specs(self, logs: Path) -> tuple[ServerSpec, ...]:
        """Return the process. It gets credentials through its environment: every user can read a command line."""
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        if self.program.kind is S3Kind.MOTO:
            command = [str(self.program.binary), "-H", "127.0.0.1", "-p", str(self.port)]
        else:
            command = [str(self.program.binary), "--port", f"127.0.0.1:{self.port}", "--region", REGION]
            # Not --keep-alive: with it, v1.8.0 answers 400 to a few requests in a thousand of pyarrow's S3 client.
            command += ["--quiet", "posix", *self._metadata_options(data), str(data)]
        environment = {"ROOT_ACCESS_KEY": self.access_key, "ROOT_SECRET_KEY": self.secret_key}
        return (ServerSpec("s3", tuple(command), logs / "s3.log", self.directory, environment),)

    def _metadata_options(self, data: Path) -> list[str]:
        """Return the options for metadata: files beside the data if the file system has no extended attributes."""
        try:
            os.setxattr(data, "user.waybill", b"1")
            os.removexattr(data, "user.waybill")
        except OSError:
            sidecar = self.directory / "metadata"
            sidecar.mkdir(exist_ok=True)
            return ["--sidecar", str(sidecar)]
        return []

    def why_not_ready(self) -> str | None:
        """Create the bucket if it does not exist. Return None if the server lists it, else the error."""
        from botocore.exceptions import BotoCoreError, ClientError

        client = self._client()
        try:
            names = [bucket.get("Name") for bucket in client.list_buckets()["Buckets"]]
            if self.bucket not in names:
                client.create_bucket(Bucket=self.bucket)
        except (BotoCoreError, ClientError) as error:
            return f"S3 does not list buckets: {error}"
        finally:
            client.close()
        return None

    def _client(self) -> Any:
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=REGION,
            config=Config(connect_timeout=2, read_timeout=5, retries={"max_attempts": 0}, proxies={}),
        )
