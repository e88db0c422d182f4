"""Known vulnerabilities in the format of OSV, and whether they concern a version.

The stored file is JSON: `{"v": 1, "collected": "2026-11-25", "source": …, "is_complete": …, "advisories": […]}`. Each
advisory has the fields of OSV's schema (https://ossf.github.io/osv-schema/) that are needed here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from devstack.supply_chain.locks import Ecosystem, Locked, normal_name
from waybill.base.errors import StackError

STORED = Path(__file__).with_name("advisories.json")
_FORMAT = 1
# Maven treats these suffixes as none, or they name the Java that a jar is built for.
_MAVEN_SUFFIX = re.compile(r"[.-](final|ga|release|jre\d*|android)$", re.IGNORECASE)


@dataclass(frozen=True)
class Range:
    """The versions from `introduced` on ('0': from the first one), before `fixed`, and up to `last_affected`."""

    introduced: str
    fixed: str = ""
    last_affected: str = ""

    def contains(self, version: Version, ecosystem: Ecosystem) -> bool:
        """Return whether a version is in this range. Raises `InvalidVersion` if a bound is no version."""
        if self.introduced != "0" and version < parse_version(self.introduced, ecosystem):
            return False
        if self.fixed:
            return version < parse_version(self.fixed, ecosystem)
        return not self.last_affected or version <= parse_version(self.last_affected, ecosystem)


@dataclass(frozen=True)
class Affected:
    """The versions of one package that an advisory concerns."""

    ecosystem: str
    name: str
    ranges: tuple[Range, ...]
    versions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Advisory:
    """One vulnerability."""

    id: str
    aliases: tuple[str, ...]
    summary: str
    affected: tuple[Affected, ...]

    def concerns(self, locked: Locked) -> bool:
        """Return whether this advisory concerns a locked version.

        Raises `StackError` if the versions cannot be compared: such a package is not taken for safe.
        """
        return any(self._is_in(affected, locked) for affected in self._entries_of(locked))

    def fixed_versions(self, locked: Locked) -> tuple[str, ...]:
        """Return the versions that end the ranges in which a locked version lies; empty: none is known."""
        ranges = [each for entry in self._entries_of(locked) for each in entry.ranges if each.fixed]
        version = parse_version(locked.version, locked.ecosystem)
        return tuple(sorted({each.fixed for each in ranges if each.contains(version, locked.ecosystem)}))

    def _entries_of(self, locked: Locked) -> Iterable[Affected]:
        return (each for each in self.affected if (each.ecosystem, each.name) == (locked.ecosystem, locked.name))

    def _is_in(self, affected: Affected, locked: Locked) -> bool:
        if locked.version in affected.versions:
            return True
        try:
            version = parse_version(locked.version, locked.ecosystem)
            return any(each.contains(version, locked.ecosystem) for each in affected.ranges)
        except InvalidVersion as error:
            raise StackError(
                f"{locked}: cannot tell whether {self.id} concerns it: {error}. "
                "Compare by hand, and add the version to the advisory's `versions`, or remove the package from it."
            ) from error


def parse_version(text: str, ecosystem: Ecosystem) -> Version:
    """Return a version that can be compared. Raises `InvalidVersion` if its text has another form."""
    return Version(_MAVEN_SUFFIX.sub("", text) if ecosystem is Ecosystem.MAVEN else text)


@dataclass(frozen=True)
class AdvisoryFile:
    """Advisories that were collected on a day."""

    collected: date
    source: str
    is_complete: bool
    """Whether it has all advisories that the source knew of the locked packages on that day."""
    advisories: tuple[Advisory, ...]


def read_advisories(path: Path = STORED) -> AdvisoryFile:
    """Read a stored file. Raises `StackError` that names the file if it is not what this version writes."""
    try:
        content = json.loads(path.read_text())
        if content["v"] != _FORMAT:
            raise StackError(f"{path} has format {content['v']!r}, and this Waybill reads {_FORMAT}")
        return AdvisoryFile(
            date.fromisoformat(content["collected"]),
            str(content["source"]),
            bool(content["is_complete"]),
            tuple(advisory_of(each) for each in content["advisories"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StackError(f"{path} is no file of advisories ({error!r}). Make it with: make audit-update") from error


def write_advisories(path: Path, collected: date, source: str, documents: Sequence[Mapping[str, Any]]) -> None:
    """Store all advisories of a source, without the fields that are not read here, so that a change is reviewed."""
    content = {
        "v": _FORMAT,
        "collected": collected.isoformat(),
        "source": source,
        "is_complete": True,
        "advisories": sorted((slim(each) for each in documents), key=lambda each: str(each["id"])),
    }
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def advisory_of(document: Mapping[str, Any]) -> Advisory:
    """Return the advisory of an OSV document. Raises `KeyError`, `ValueError` or `TypeError` if it is none."""
    return Advisory(
        str(document["id"]),
        tuple(document.get("aliases", ())),
        str(document.get("summary", "")),
        tuple(_affected(each) for each in document["affected"] if "package" in each),
    )


def slim(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return an OSV document with the fields that are read here. Lists of versions stay where there is no range."""
    affected = []
    for each in document["affected"]:
        ranges = [{"type": "ECOSYSTEM", "events": one["events"]} for one in _ecosystem_ranges(each)]
        if "package" in each and each["package"]["ecosystem"] in set(Ecosystem):
            package = {name: each["package"][name] for name in ("ecosystem", "name")}
            affected.append({"package": package, **({"ranges": ranges} if ranges else _versions(each))})
    kept = {name: document[name] for name in ("id", "aliases", "modified", "summary") if name in document}
    return kept | {"affected": affected}


def _versions(affected: Mapping[str, Any]) -> dict[str, Any]:
    return {"versions": list(affected.get("versions", ()))}


def _ecosystem_ranges(affected: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [each for each in affected.get("ranges", ()) if each["type"] == "ECOSYSTEM"]


def _affected(document: Mapping[str, Any]) -> Affected:
    package = document["package"]
    name = normal_name(package["name"]) if package["ecosystem"] == Ecosystem.PYPI else str(package["name"])
    ranges = (one for each in _ecosystem_ranges(document) for one in _ranges(each["events"]))
    return Affected(str(package["ecosystem"]), name, tuple(ranges), tuple(document.get("versions", ())))


def _ranges(events: Sequence[Mapping[str, str]]) -> list[Range]:
    """Return the ranges of a list of events, in which each `introduced` comes before its end, if it has one."""
    found: list[Range] = []
    for event in events:
        ((kind, version),) = event.items()
        if kind == "introduced":
            found.append(Range(version))
        elif kind in ("fixed", "last_affected"):
            if not found or found[-1].fixed or found[-1].last_affected:
                raise ValueError(f"the event {dict(event)} ends no range")
            start = found.pop().introduced
            found.append(Range(start, fixed=version) if kind == "fixed" else Range(start, last_affected=version))
        elif kind != "limit":
            raise ValueError(f"the event {dict(event)} is none that this version knows")
    return found
