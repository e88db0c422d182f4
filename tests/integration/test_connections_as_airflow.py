"""Waybill parses a connection's JSON or URI as Airflow does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from waybill.config.connections import find_connection

pytestmark = pytest.mark.integration

VALUES = [
    "kafka://h1:1",
    "kafka://h1%3A1%2Ch2%3A2",
    "kafka:///?bootstrap.servers=h1%3A1%2Ch2%3A2",
    "aws://AK:se%2Fcret@/?endpoint_url=http%3A%2F%2Fx%3A1&region_name=eu",
    "aws://?__extra__=%7B%22a%22%3A1%7D",
    "aws://",
    "zookeeper://Host:2181/chroot%2Fa",
    "http://https://x.y:1/a?b=c",
    "spark://local%5B2%5D",
    "my-own-type://u%40x:p%3A@h/",
    "postgresql://a/b",
    "sqlite://%2FUsers%2FMe%2Fcatalog.db",
    '{"conn_type": "kafka", "extra": {"bootstrap.servers": "h:1"}}',
    '{"conn_type": "kafka", "extra": "{\\"bootstrap.servers\\": \\"h:1\\"}"}',
    '{"conn_type": "my-own-type", "host": "sqlite:////tmp/Catalog.db", "port": "17", "schema": "s", "login": "l"}',
]


@pytest.mark.parametrize("value", VALUES)
def test_find_connection_parses_a_value_as_airflow_does(value: str) -> None:
    from airflow.sdk.definitions.connection import Connection as AirflowConnection

    from_text = AirflowConnection.from_json if value.startswith("{") else AirflowConnection.from_uri
    theirs = from_text(value, conn_id="c")
    ours = find_connection("c", {"AIRFLOW_CONN_C": value})
    expected: dict[str, Any] = {
        "conn_type": theirs.conn_type or "",
        "host": theirs.host or None,
        "port": theirs.port,
        "login": theirs.login or None,
        "password": theirs.password or None,
        "path": theirs.schema or None,
        "extra": json.loads(theirs.extra or "{}"),
    }
    assert ours.model_dump(exclude={"conn_id"}) == expected
