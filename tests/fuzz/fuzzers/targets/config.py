"""The config file, and connections as URIs and JSON."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fuzzers.engine import Target
from fuzzers.mutation import Mutator, edge, text
from waybill.base.errors import ConfigError
from waybill.config.connections.connection import CatalogEndpoint, Connection, find_connection
from waybill.config.connections.database import DatabaseEndpoint
from waybill.config.connections.http import AirflowEndpoint, HttpEndpoint, RegistryEndpoint
from waybill.config.connections.kafka import KafkaEndpoint
from waybill.config.connections.kinesis import KinesisEndpoint
from waybill.config.connections.s3 import S3Endpoint
from waybill.config.connections.zookeeper import ZooKeeperEndpoint
from waybill.config.models import load_config
from waybill.config.models.load import load_valid_streams

_MAX_ERROR_BYTES = 20_000

# --- the config file --------------------------------------------------------------------------------------------------

_CONFIG = """\
version: 1
storage: {bucket: archive, prefix: p}
alerts:
  channels: {mail: {type: email, connection: smtp, to: [a@example.org], sender: w@example.org}}
streams:
  orders:
    topics: [orders, "re:^o.*"]
    parser: {name: json, event_time: {field: a.at, format: epoch_ms}, message_id: id}
    table: analytics.orders
    columns: {total: "decimal(12,2)", tags: list<string>, at2: {type: timestamp, format: iso8601, wrong_type: null}}
    dedup: {window: 7d}
    lanes: 2
  lines:
    topics: [lines]
    parser: {name: regex, pattern: '^(?P<at>\\S+)', event_time: {field: at, format: iso8601}}
    table: analytics.lines
    retention: {quarantine: 30d}
"""
_WORDS = [
    ":",
    "- ",
    "[",
    "]",
    "{",
    "}",
    "null",
    "~",
    "&a ",
    "*a",
    "<<: ",
    "!!python/object:os.system ",
    "!x ",
    "|",
    ">",
    "'",
]
_WORDS += [
    '"',
    "\t",
    "\n",
    "\n  ",
    "#",
    "%YAML 9.9\n",
    "---\n",
    "...\n",
    "1e400",
    "0o17",
    "1:2",
    ".inf",
    ".nan",
    "yes",
    "\0",
    "\x85",
]
_WORDS += [
    "\ufeff",
    "\ud7ff",
    "2026-01-01",
    "99999999999999999999",
    "1d",
    "-5m",
    "re:",
    "(?P<",
    "?",
    "re:^(a+)+$",
    "a" * 300,
    "ä",
]
_WORDS += ["[" * 300, "{a: " * 100, "&x [*x, *x]", "decimal(99,1)", "list<list<", "${X}", "../../x"]


@cache
def _configs() -> list[bytes]:
    installed = Path(__file__).parents[4] / "include" / "config" / "streams.yaml"
    return [_CONFIG.encode(), installed.read_bytes()]


def _make_config(chance: random.Random) -> bytes:
    found = chance.choice(_configs())
    if chance.random() < 0.5:  # a value or a key is replaced, so that the file stays YAML more often
        lines = found.decode().split("\n")
        at = chance.randrange(len(lines))
        key, colon, value = lines[at].partition(": ")
        new = chance.choice([*_WORDS, str(edge(chance)), text(chance)])
        lines[at] = (
            f"{key}{colon}{new}"
            if chance.random() < 0.7
            else f"{key[: len(key) - len(key.lstrip())]}{new}{colon}{value}"
        )
        return "\n".join(lines).encode()
    return Mutator([found], [*(each.encode() for each in _WORDS), b"\xff"])(chance)


def _check_config(inputs: Sequence[bytes]) -> None:
    """Invariants: a config, or `ConfigError` with the file's name, of bounded size; the same for one broken stream.

    3,000 inputs in `make test-deep`: the file is read twice, with all expressions and schemas, which takes 20 ms.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "streams.yaml"
        for content in inputs:
            path.write_bytes(content)
            for load in (load_config, load_valid_streams):
                _only_config_errors(lambda load=load: load(path), str(path))


def _only_config_errors(step: Callable[[], Any], named: str = "", secret: str = "") -> Any:
    try:
        return step()
    except ConfigError as error:
        shown = str(error)
        assert named in shown, shown
        assert not secret or secret not in shown, shown
        assert len(shown.encode()) < _MAX_ERROR_BYTES, f"an error of {len(shown):,} characters"
        return None


# --- connections ------------------------------------------------------------------------------------------------------

_SECRET = "s3cr3t-Pa55"
_ENDPOINTS: list[Callable[[Connection], Any]] = [
    CatalogEndpoint.of, DatabaseEndpoint.of, HttpEndpoint.of, RegistryEndpoint.of, AirflowEndpoint.of, KafkaEndpoint.of,
    KinesisEndpoint.of, S3Endpoint.of, ZooKeeperEndpoint.of,
]  # fmt: skip
_CONNECTIONS = [
    f"http://user:{_SECRET}@example.org:8080/path?timeout=5", f"kafka://user:{_SECRET}@k1:9092,k2:9092/?security.protocol=SASL_SSL",
    f"aws://key:{quote(_SECRET)}@/?endpoint_url=http%3A%2F%2Flocalhost%3A9000&region_name=eu-west-1", "zookeeper://zk1:2181,zk2/chroot",
    f"postgres://u:{_SECRET}@db:5432/waybill", "sqlite:////tmp/x.db", "http://https://host", "http://[::1]:80",
    json.dumps({"conn_type": "http", "host": "https://example.org", "password": _SECRET, "extra": {"headers": {"a": "b"}}}),
    json.dumps({"conn_type": "kafka", "host": "k", "port": 9092, "extra": json.dumps({"sasl.mechanism": "PLAIN"})}),
    json.dumps({"conn_type": "aws", "login": "k", "password": _SECRET, "extra": {"role_arn": "arn:aws:iam::1:role/r"}}),
    json.dumps({"conn_type": "iceberg", "host": "http://c", "extra": {"type": "rest", "warehouse": "w"}}),
]  # fmt: skip
_PIECES = [
    b"://",
    b"@",
    b":",
    b"/",
    b"?",
    b"&",
    b"=",
    b"%",
    b"%00",
    b"%ff",
    b"[",
    b"]",
    b"[::1",
    b"#",
    b",",
    b";",
    b"\\",
    b" ",
]
_PIECES += [
    b"__extra__=%7B",
    b"null",
    b"true",
    b"[]",
    b"{}",
    b'"',
    b"-1",
    b"99999",
    b"1e9",
    "ä".encode(),
    "٣".encode(),
    b"\n",
]
_PIECES += ["\ud7ff".encode(), "℀".encode(), b"\\ud800", b"[" * 3000, b"NaN", b"0x50"]
_make_connection = Mutator([each.encode() for each in _CONNECTIONS], _PIECES)


def _check_connections(inputs: Sequence[bytes]) -> None:
    """Invariants: an endpoint or `ConfigError`, whatever the connection is used for. No error shows the password."""
    for content in inputs:
        value = content.decode(errors="replace").replace("\0", "")
        conn = _only_config_errors(
            lambda value=value: find_connection("fuzz", {"AIRFLOW_CONN_FUZZ": value}), secret=_SECRET
        )
        if conn is None:
            continue
        others = repr([conn.conn_type, conn.host, conn.login, conn.path, conn.extra])
        secret = "" if _SECRET in others else _SECRET  # a mutation has moved it to a field that may be shown
        for endpoint in _ENDPOINTS:
            _only_config_errors(lambda endpoint=endpoint, conn=conn: endpoint(conn), secret=secret)


CONFIG = Target("config", _make_config, _check_config, batch=20, deep=3_000, smoke=60)
CONNECTIONS = Target("connections", _make_connection, _check_connections)
