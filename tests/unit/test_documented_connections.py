"""Waybill accepts the connections in docs/your-own-kafka-and-s3.md."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from waybill.config.connections import (
    CatalogEndpoint,
    KafkaEndpoint,
    RegistryEndpoint,
    S3Endpoint,
    ZooKeeperEndpoint,
    connection_variable,
    find_connection,
)

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "your-own-kafka-and-s3.md"
EXPORTS = re.findall(r"^export AIRFLOW_CONN_([A-Z]+)_DEFAULT=(.+)$", DOCUMENT.read_text(), re.MULTILINE)
ENDPOINTS = {
    "KAFKA": KafkaEndpoint,
    "ZOOKEEPER": ZooKeeperEndpoint,
    "AWS": S3Endpoint,
    "ICEBERG": CatalogEndpoint,
    "REGISTRY": RegistryEndpoint,
}


@pytest.mark.parametrize(("kind", "value"), EXPORTS)
def test_documented_connection_is_accepted(kind: str, value: str) -> None:
    (text,) = shlex.split(value)
    found = find_connection("c", {connection_variable("c"): text})
    if kind in ENDPOINTS:
        assert ENDPOINTS[kind].of(found).conn_id == "c"


def test_document_has_connections_of_each_kind() -> None:
    assert {kind: sum(each == kind for each, _ in EXPORTS) for kind in ENDPOINTS} == {
        "KAFKA": 5,
        "ZOOKEEPER": 4,
        "AWS": 4,
        "ICEBERG": 1,
        "REGISTRY": 1,
    }
