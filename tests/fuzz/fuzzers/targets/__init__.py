"""All targets by name, in the order in which `make fuzz` runs them."""

from __future__ import annotations

from fuzzers.engine import Target
from fuzzers.targets import json

_ALL = (
    json.JSON, json.JSON_COLUMNS,
)

TARGETS: dict[str, Target] = {target.name: target for target in _ALL}
