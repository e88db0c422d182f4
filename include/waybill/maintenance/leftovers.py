"""What partition runs and ingest leave in the archive's bucket beside the archive, once nobody needs it.

**Plans, and what was staged for them.** A plan can be committed only as long as the table's progress is where the plan
starts. Beyond that it is passed, and its objects are of no use; a driver that wakes even later finds its plan done. A
plan that is not passed is *open*: what was staged for it must stay, however old it is. So must a plan that cannot be
read, or that starts where a table that was rolled back is not yet, and what a retry of the quarantine has written down
until both tables have taken part in it.

**Index objects** of uploads that came to nothing. One may go only where the backup object of the same name is there and
names another index: that upload can never complete any more. Where there is no such object it still might, by a lane
that was frozen in the middle, and would then lack its index.

Files below a table's location that may be orphans: old enough, and not what an open plan may still commit.

Whether a snapshot references them is for Iceberg's own procedure to find, later than this: so a file that is committed
in between is referenced by then, and one that is written in between is not among these.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from waybill import names
from waybill.archive.indexed_reader import TOKEN
from waybill.errors import ConfigError, ObjectMissing
from waybill.names import TopicPartition
from waybill.store import ListedObject, Store
from waybill.tables import Progress

__all__ = [
    "Location",
    "Plans",
    "StagedPlan",
    "find_plans",
    "find_retries",
    "orphan_candidates",
    "orphaned_indexes",
    "sort_plans",
    "strings_of",
]

logger = logging.getLogger(__name__)

_STAGED = ".staged.json"
_JSON = ".json"


@dataclass(frozen=True, slots=True)
class StagedPlan:
    """A plan as its objects say."""

    id: str
    start: Progress | None
    """None: there is no plan object, or it cannot be read."""
    staged_files: frozenset[str]
    """Locations of the data files that a run has staged for it."""
    objects: tuple[ListedObject, ...]
    """In the order in which they may be removed: a plan without what was staged for it is carried out anew."""

    @property
    def modified(self) -> datetime:
        """When the last of its objects was created."""
        return max(entry.modified for entry in self.objects)


@dataclass(frozen=True, slots=True)
class Plans:
    """The plans of a table, by what may become of them."""

    open: tuple[StagedPlan, ...]
    passed: tuple[StagedPlan, ...]

    def protects(self, location: str) -> bool:
        """Whether an open plan may still need the data file: it was staged, or a run carries the plan out just now."""
        name = location.rsplit("/", 1)[-1]
        return any(name.startswith(f"{plan.id}-") or location in plan.staged_files for plan in self.open)


def find_plans(store: Store, prefix: str) -> list[StagedPlan]:
    """The plans below `prefix` (of `names.plans_prefix`), each object read."""
    by_id: dict[str, list[ListedObject]] = {}
    for entry in store.list_objects(prefix):
        name = entry.key.removeprefix(prefix)
        if "/" not in name and name.endswith(_JSON):
            by_id.setdefault(name.removesuffix(_STAGED).removesuffix(_JSON), []).append(entry)
    return [plan for plan_id, entries in by_id.items() if (plan := _read_plan(store, plan_id, entries)) is not None]


def _read_plan(store: Store, plan_id: str, entries: list[ListedObject]) -> StagedPlan | None:
    start: Progress | None = None
    files: frozenset[str] = frozenset()
    objects = sorted(entries, key=lambda entry: not entry.key.endswith(_STAGED))
    for entry in objects:
        text = store.read_if_there(entry.key)
        if text is None:  # another maintenance run was faster
            return None
        if entry.key.endswith(_STAGED):
            files = _staged_files(entry.key, text)
        else:
            start = _start(entry.key, text)
    return StagedPlan(plan_id, start, files, tuple(objects))


def find_retries(store: Store, prefix: str, *, taken_part: int) -> list[StagedPlan]:
    """Retries of the quarantine, below `prefix` (of `names.retries_prefix`), that are not over.

    `taken_part`: how many of them both tables have behind them.
    """
    found = []
    for key in store.keys(prefix):
        number = key.removeprefix(prefix).removesuffix(_JSON)
        if key.endswith(_JSON) and number.isdecimal() and int(number) >= taken_part:
            files = _staged_files(key, store.read_if_there(key) or b"{}")
            found.append(StagedPlan(f"retry-{number}", None, files, ()))
    return found


def _start(key: str, text: bytes) -> Progress | None:
    """Where a plan starts: what every version of the document says alike."""
    try:
        return {TopicPartition.parse(tp): int(offset) for tp, offset in json.loads(text)["start"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        logger.warning("plan %s cannot be read (%s): it stays, and so do the files that it may need", key, error)
        return None


def _staged_files(key: str, text: bytes) -> frozenset[str]:
    """All locations that the document names, wherever in it: a newer version may name more."""
    try:
        return frozenset(found for found in strings_of(json.loads(text)) if "://" in found)
    except ValueError as error:
        logger.warning("%s cannot be read: %s", key, error)
        return frozenset()


def strings_of(document: object) -> Iterator[str]:
    """All texts of a JSON document, wherever in it they are; not its keys."""
    if isinstance(document, str):
        yield document
    elif isinstance(document, Mapping):
        for value in document.values():
            yield from strings_of(value)
    elif isinstance(document, list):
        for value in document:
            yield from strings_of(value)


def sort_plans(plans: Iterable[StagedPlan], progress: Progress) -> Plans:
    """Which plans the table, at `progress`, may still commit, and which it has passed."""
    found = list(plans)
    return Plans(
        open=tuple(plan for plan in found if not _is_passed(plan.start, progress)),
        passed=tuple(plan for plan in found if _is_passed(plan.start, progress)),
    )


def _is_passed(start: Progress | None, progress: Progress) -> bool:
    if start is None or dict(start) == dict(progress):
        return False
    return all(progress.get(tp, -1) >= offset for tp, offset in start.items())


def orphaned_indexes(store: Store, topics: Iterable[str], generation: int) -> Iterator[ListedObject]:
    """Index objects of a generation that a backup object of the same name has passed over for another one."""
    for topic in topics:
        prefix = f"{names.indexes_prefix(store.prefix)}{names.check_topic(topic)}/{generation}_"
        of_object: dict[str, list[ListedObject]] = {}
        for entry in store.list_objects(prefix):
            of_object.setdefault(entry.key.rsplit("/", 1)[-1].partition(".")[0], []).append(entry)
        for start, entries in of_object.items():
            if len(entries) > 1:  # one alone is the one that its backup object names
                yield from _passed_over(store, topic, start, entries)


def _passed_over(store: Store, topic: str, start: str, entries: list[ListedObject]) -> list[ListedObject]:
    found = [*store.keys(f"{names.backup_prefix(store.prefix, topic)}{start}.")]
    if len(found) != 1:
        return []
    try:
        token = store.metadata(found[0]).get(TOKEN)
    except ObjectMissing:
        return []
    named = [entry for entry in entries if token is not None and entry.key.endswith(f".{token}.parquet")]
    if not named:
        logger.warning("%s names an index that is not there; its others stay", found[0])
        return []
    return [entry for entry in entries if entry not in named]


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
