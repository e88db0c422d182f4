"""Files below a table's location that may be orphans: old enough, and not what an open plan may still commit.

Whether a snapshot references them is for Iceberg's own procedure to find, later than this: so a file that is committed
in between is referenced by then, and one that is written in between is not among these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from waybill.errors import ConfigError
from waybill.store import ListedObject

__all__ = ["Location", "orphan_candidates"]

_LOCATION = re.compile(r"(?P<scheme>s3[an]?)://(?P<bucket>[^/]+)/(?P<key>.+)")


@dataclass(frozen=True, slots=True)
class Location:
    """Where a table is."""

    scheme: str
    bucket: str
    key: str

    @classmethod
    def parse(cls, text: str) -> Location:
        """Raises `ConfigError` for what is not on S3: Waybill's tables are."""
        found = _LOCATION.fullmatch(text.rstrip("/"))
        if found is None:
            raise ConfigError(f"a table at {text!r} cannot be looked through for orphans: only those on S3 can")
        return cls(found["scheme"], found["bucket"], found["key"])

    def of(self, entry: ListedObject) -> str:
        """The location of an object of the same bucket, as Iceberg's metadata writes it."""
        return f"{self.scheme}://{self.bucket}/{entry.key}"


def orphan_candidates(
    location: Location, listed: Iterable[ListedObject], *, before: datetime, protected: Callable[[str], bool]
) -> list[tuple[str, ListedObject]]:
    """The objects among `listed` that are older than `before` and not protected, with their locations.

    Folders' own empty objects, which some clients leave, are left alone.
    """
    found = [(location.of(entry), entry) for entry in listed if entry.modified < before and not entry.key.endswith("/")]
    return [(path, entry) for path, entry in found if not protected(path)]
