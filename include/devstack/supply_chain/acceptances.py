"""Advisories that are accepted: a person has decided that they do no harm here, says why, and until when that holds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path

import yaml

from waybill.base.errors import StackError

ACCEPTED = Path(__file__).with_name("accepted.yaml")
_FIELDS = {"id", "package", "by", "accepted_on", "until", "why"}


@dataclass(frozen=True)
class Acceptance:
    """One accepted advisory of one package. `id`: the advisory's id or one of its aliases."""

    id: str
    package: str
    by: str
    accepted_on: date
    until: date
    """The last day on which it holds."""
    why: str


def read_acceptances(path: Path = ACCEPTED) -> list[Acceptance]:
    """Read the accepted advisories. Raises `StackError` that names the entry which is not complete."""
    try:
        entries = yaml.safe_load(path.read_text()) or []
    except (OSError, yaml.YAMLError) as error:
        raise StackError(f"{path} cannot be read: {error}") from error
    if not isinstance(entries, list):
        raise StackError(f"{path} must be a list of accepted advisories")
    return [_acceptance(path, number, entry) for number, entry in enumerate(entries, 1)]


def _acceptance(path: Path, number: int, entry: object) -> Acceptance:
    if not isinstance(entry, dict) or set(entry) != _FIELDS:
        raise StackError(f"{path}: entry {number} must have exactly the fields {', '.join(sorted(_FIELDS))}")
    for name in ("accepted_on", "until"):
        if type(entry[name]) is not date:
            raise StackError(f"{path}: entry {number}: {name} is {entry[name]!r}, and must be a day such as 2026-12-31")
    for name in ("id", "package", "by", "why"):
        if not isinstance(entry[name], str) or not entry[name].strip():
            raise StackError(f"{path}: entry {number}: {name} is {entry[name]!r}, and must be a text")
    if entry["until"] < entry["accepted_on"]:
        raise StackError(f"{path}: entry {number} ends on {entry['until']}, before it begins on {entry['accepted_on']}")
    return Acceptance(**entry)
