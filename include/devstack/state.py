"""The files of the stack's state directory: ports and secrets, exports for a shell, Spark's defaults."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from devstack.kafka import BROKER_IDS
from devstack.s3 import S3Kind, S3Program
from devstack.servers import free_ports, write_private
from waybill.base.errors import StackError

if TYPE_CHECKING:
    from collections.abc import Callable

ENVIRONMENT_FILE = "env"
SPARK_CONF_DIRECTORY = "spark-conf"

_ENDPOINTS_FILE = "stack.json"
_VERSION = 1
# Two for each broker, one for ZooKeeper, one for S3, three for Airflow.
_PORT_COUNT = 2 * len(BROKER_IDS) + 2 + 3


def project_root() -> Path:
    """Return the checkout, which contains dags/, plugins/ and spark_jobs/."""
    return Path(__file__).resolve().parents[2]


def state_dir() -> Path:
    """Return the state directory of `make up` and the demo: `WAYBILL_STATE_DIR`, or `.waybill` in the checkout."""
    return Path(os.environ.get("WAYBILL_STATE_DIR") or project_root() / ".waybill").expanduser().absolute()


@dataclass(frozen=True)
class Endpoints:
    """Ports, programs and secrets of a stack. Stored in the state directory, readable by its owner only."""

    ports: tuple[int, ...]
    s3_kind: S3Kind
    s3_binary: str
    s3_access_key: str
    s3_secret_key: str
    airflow_password: str


def read_endpoints(directory: Path) -> Endpoints | None:
    """Return the stored endpoints, or None before the first start. Raises `StackError` if the file cannot be used."""
    path = directory / _ENDPOINTS_FILE
    try:
        document = json.loads(path.read_text())
        if document.pop("v") != _VERSION:
            raise ValueError("another version of the stack wrote it")
        return Endpoints(**document | {"ports": tuple(document["ports"]), "s3_kind": S3Kind(document["s3_kind"])})
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise StackError(f"{path} cannot be used: {error}. Remove {directory} and start again.") from error


def update_endpoints(directory: Path, program: S3Program) -> Endpoints:
    """Return the stored endpoints, with free ports instead of those that are taken now, and store them."""
    stored = read_endpoints(directory)
    endpoints = Endpoints(
        ports=tuple(free_ports(_PORT_COUNT, prefer=stored.ports if stored else ())),
        s3_kind=program.kind,
        s3_binary=str(program.binary),
        s3_access_key=stored.s3_access_key if stored else "waybill",
        s3_secret_key=stored.s3_secret_key if stored else secrets.token_hex(16),
        airflow_password=stored.airflow_password if stored else secrets.token_urlsafe(9),
    )
    write_private(directory / _ENDPOINTS_FILE, json.dumps({"v": _VERSION} | asdict(endpoints), indent=2))
    return endpoints


def discard_state_of_lost_objects(directory: Path, program: S3Program, report: Callable[[str], None]) -> None:
    """If S3 is moto's server, remove topics, committed offsets and tables: their objects ended with its process.

    Raises `StackError` if the objects in the state directory belong to the other S3 server.
    """
    stored = read_endpoints(directory)
    if stored is None:
        return
    if stored.s3_kind is not program.kind:
        raise StackError(
            f"the objects in {directory} belong to {stored.s3_kind}, and the S3 server is now {program.kind}: "
            f"set WAYBILL_S3_SERVER={stored.s3_kind}, or delete the state with: python -m devstack down --wipe"
        )
    if program.kind is S3Kind.MOTO:
        report("moto keeps objects in memory, so those of the last start are lost: removing topics and tables as well")
        for name in ("kafka", "zookeeper"):
            shutil.rmtree(directory / name, ignore_errors=True)
        (directory / "catalog.db").unlink(missing_ok=True)


def write_spark_defaults(directory: Path, iceberg_jars: Path) -> None:
    """Write Spark's defaults: Iceberg's jars on the class path, from the cache."""
    # Not by spark.jars, with which each job would copy them.
    target = directory / SPARK_CONF_DIRECTORY
    target.mkdir(parents=True, exist_ok=True)
    lines = (f"spark.{process}.extraClassPath {iceberg_jars}/*\n" for process in ("driver", "executor"))
    (target / "spark-defaults.conf").write_text("".join(lines))


def write_exports(directory: Path, environment: dict[str, str]) -> None:
    """Write the file that a shell sources to use the stack. It contains secrets."""
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in environment.items()]
    lines.append(f'export PATH={shlex.quote(str(Path(sys.prefix) / "bin"))}:"$PATH"\n')
    text = "# source this file, and `waybill` works on the local stack\n" + "".join(lines)
    write_private(directory / ENVIRONMENT_FILE, text)
