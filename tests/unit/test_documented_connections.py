"""The connections of docs/your-own-kafka-and-s3.md are ones that Waybill takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from waybill.connections import (
    CatalogEndpoint,
    KafkaEndpoint,
    RegistryEndpoint,
    S3Endpoint,
    ZooKeeperEndpoint,
    connection,
    variable,
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
def test_it_is_read(kind: str, value: str) -> None:
    (text,) = shlex.split(value)
    found = connection("c", {variable("c"): text})
    if kind in ENDPOINTS:
        assert ENDPOINTS[kind].of(found).conn_id == "c"


def test_there_are_some_of_each_kind() -> None:
    assert {kind: sum(each == kind for each, _ in EXPORTS) for kind in ENDPOINTS} == {
        "KAFKA": 5,
        "ZOOKEEPER": 4,
        "AWS": 4,
        "ICEBERG": 1,
        "REGISTRY": 1,
    }
