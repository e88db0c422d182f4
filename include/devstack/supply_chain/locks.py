"""What Waybill, its tests and its local stack install: packages of Python and jars, in the versions of the locks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from devstack.jars import DIGESTS
from waybill.base.errors import StackError

REQUIREMENTS = ("requirements.txt", "requirements-dev.txt", "requirements-spark.txt", "requirements-image.txt")
COORDINATES = Path(__file__).with_name("jars.coordinates")
"""The Maven coordinates of each jar of `jars.sha256`: the name of a file does not tell its group."""

_PIN = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)")


class Ecosystem(StrEnum):
    """A package index, as OSV names it."""

    PYPI = "PyPI"
    MAVEN = "Maven"


@dataclass(frozen=True, order=True)
class Locked:
    """A package in the one version that is installed. `name`: for a jar `group:artifact`."""

    ecosystem: Ecosystem
    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def locked_packages(root: Path) -> dict[Locked, tuple[str, ...]]:
    """Return what the locks of a checkout name, each with the names of the files that lock it.

    Raises `StackError` if a lock is missing or names nothing, or if a jar has no coordinates.
    """
    found: dict[Locked, tuple[str, ...]] = {}
    for name in REQUIREMENTS:
        for locked in read_requirements(root / name):
            found[locked] = (*found.get(locked, ()), name)
    for locked in read_jars():
        found[locked] = (DIGESTS.name,)
    return found


def read_requirements(path: Path) -> list[Locked]:
    """Return the packages that a lock of `uv pip compile` names. Raises `StackError` if there are none."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise StackError(f"the lock {path} cannot be read: {error}. Make it with: make lock") from error
    pins = [match for line in lines if (match := _PIN.match(line))]
    if not pins:
        raise StackError(f"the lock {path} names no package. Make it with: make lock")
    return [Locked(Ecosystem.PYPI, normal_name(name), version) for name, version in (pin.groups() for pin in pins)]


def read_jars(digests: Path = DIGESTS, coordinates: Path = COORDINATES) -> list[Locked]:
    """Return the jars that have a digest. Raises `StackError` that names those without coordinates."""
    known = dict(line.split() for line in coordinates.read_text().splitlines() if not line.startswith("#"))
    files = [line.split()[1] for line in digests.read_text().splitlines()]
    if unknown := [file for file in files if file not in known]:
        raise StackError(
            f"{coordinates.name} has no coordinates of {', '.join(unknown)}: add lines `file group:artifact:version`"
        )
    jars = (known[file].rsplit(":", 1) for file in files)
    return sorted({Locked(Ecosystem.MAVEN, name, version) for name, version in jars})


def normal_name(name: str) -> str:
    """Return a Python package's name in the form in which names are compared (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
