"""kafka-python's modules are imported without its clients, and the clients can still be used."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def run_python(code: str) -> Any:
    """Run code in a new process, and return what it prints as JSON."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_sources_import_neither_clients_nor_administrative_messages() -> None:
    loaded = run_python("import json, sys, waybill.services.kafka.kafka\nprint(json.dumps(sorted(sys.modules)))")
    assert "kafka.net.manager" in loaded
    assert {"kafka.consumer", "kafka.producer", "kafka.admin", "kafka.protocol.admin.acl"}.isdisjoint(loaded)


def test_clients_can_be_imported_afterwards() -> None:
    code = """
import json, waybill.services.kafka.kafka
from kafka import KafkaConsumer, errors
import kafka, kafka.admin
from kafka.protocol.admin import CreateTopicsRequest, ListGroupsRequest
print(json.dumps([
    KafkaConsumer.__name__,
    CreateTopicsRequest.__name__,
    ListGroupsRequest.__module__,
    kafka.KafkaAdminClient is kafka.admin.KafkaAdminClient,
    kafka.__title__,
    hasattr(kafka, "no_such_name"),
    errors is kafka.errors,
    kafka.net.manager.__name__,
]))
"""
    assert run_python(code) == [
        "KafkaConsumer",
        "CreateTopicsRequest",
        "kafka.protocol.admin.groups",
        True,
        "kafka",
        False,
        True,
        "kafka.net.manager",
    ]


def test_a_package_that_is_imported_already_stays_as_it_is() -> None:
    code = "import json, kafka\nbefore = kafka\nimport waybill.services.kafka.kafka\nprint(json.dumps(before is kafka))"
    assert run_python(code) is True
