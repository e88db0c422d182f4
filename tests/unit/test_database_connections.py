"""Connections of SQL databases: what they mean, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from waybill.base.errors import ConfigError
from waybill.config.connections import find_connection
from waybill.config.connections.database import DatabaseEndpoint
from waybill.replay.requests.database import Database


def endpoint(text: str) -> DatabaseEndpoint:
    return DatabaseEndpoint.of(find_connection("waybill_replay", {"AIRFLOW_CONN_WAYBILL_REPLAY": text}))


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ('{"conn_type": "sqlite", "host": "/var/lib/waybill/Replay.db"}', "sqlite:////var/lib/waybill/Replay.db"),
        ("sqlite://%2Fvar%2Flib%2FReplay.db", "sqlite:////var/lib/Replay.db"),
        (
            "postgresql://me:p%40ss@db:6432/replay?sslmode=verify-full",
            "postgresql+psycopg://me:p%40ss@db:6432/replay?sslmode=verify-full",
        ),
        ('{"conn_type": "mysql", "host": "db", "login": "me", "schema": "replay"}', "mysql+pymysql://me@db/replay"),
        ("postgres://db/replay?driver=psycopg2", "postgresql+psycopg2://db/replay"),
    ],
)
def test_a_connection_is_a_sqlalchemy_url(text: str, url: str) -> None:
    assert endpoint(text).url.render_as_string(hide_password=False) == url


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"conn_type": "oracle", "host": "db"}', "its type is 'oracle', and must be sqlite, postgres or mysql"),
        ('{"conn_type": "sqlite"}', "has no host"),
        ('{"conn_type": "sqlite", "host": "replay.db"}', "must be the absolute path"),
        ('{"conn_type": "sqlite", "host": "/a.db", "extra": {"mode": "ro"}}', "must be empty, and has mode"),
        ("postgres://db", "has no schema"),
        ("postgres:///replay", "has no host"),
        ('{"conn_type": "postgres", "host": "db", "schema": "r", "extra": {"sslmode": 1}}', "must be text"),
    ],
)
def test_a_connection_that_cannot_be_used_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        endpoint(text)


def test_the_password_is_neither_in_messages_nor_in_repr() -> None:
    found = endpoint("postgres://me:s3cret@db/replay?sslpassword=s3cret")
    assert "s3cret" not in f"{found!r} {found} {found.shown}"


def test_a_missing_driver_or_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="install its driver"):
        Database(endpoint("postgres://db/replay?driver=nonsense"))
    with pytest.raises(ConfigError, match="there is no directory"):
        Database(endpoint(f'{{"conn_type": "sqlite", "host": "{tmp_path}/none/replay.db"}}'))


def test_the_documented_connections_are_accepted() -> None:
    docs = Path(__file__).resolve().parents[2] / "docs"
    texts = [(docs / name).read_text() for name in ("your-own-kafka-and-s3.md", "restore-and-replay.md")]
    values = [each for text in texts for each in re.findall(r"^export AIRFLOW_CONN_WAYBILL_REPLAY='(.+)'$", text, re.M)]
    assert [endpoint(value).url.get_backend_name() for value in values] == ["postgresql", "sqlite"]
