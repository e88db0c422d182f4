"""Find the plans of partition runs, sweeps and quarantine retries, and decide which may still be committed.

A plan is *open* as long as a run may still commit it, and *passed* afterwards.

- The plan of a partition run can be committed only while the table's progress is where the plan starts. A driver that
  continues later finds that the plan is done.
- The plan of a sweep is named after the sequence number at which it starts. It can be committed only until the unique
  table's position has passed that number.
- A retry of the quarantine is open until both the main table and the quarantine have committed it.

The staged files of an open plan must be kept, even if they are old. A plan also counts as open if it cannot be read,
and if it starts at a progress that a table that was rolled back may reach again. The objects of a passed plan can be
removed.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from waybill.config.names import TopicPartition
from waybill.services.store import ListedObject, Store
from waybill.tables.audit import DecisionKind, find_decision
from waybill.tables.iceberg import Progress, SweepPosition
from waybill.tables.partition.partition_plan import plan_id

logger = logging.getLogger(__name__)

_STAGED = ".staged.json"
_JSON = ".json"
_DECISION = ".decision.json"
_SWEEP_OBJECT = re.compile(r"([0-9]{20})(?:\.json|\.staged\.json|\.marks/.+)")


@dataclass(frozen=True, slots=True)
class StagedPlan:
    """A stored plan, with the objects that belong to it."""

    id: str
    start: Progress | None
    """The progress at which the plan starts; None if the plan object does not exist or cannot be read."""
    staged_files: frozenset[str]
    """Locations of the data files, and keys of the key index files, that are staged for the plan."""
    objects: tuple[ListedObject, ...]
    """The plan's objects in the order in which they may be removed."""

    @property
    def modified(self) -> datetime:
        """The creation time of the newest object of the plan."""
        return max(entry.modified for entry in self.objects)


@dataclass(frozen=True, slots=True)
class Plans:
    """The plans of a table, divided into open and passed ones."""

    open: tuple[StagedPlan, ...]
    passed: tuple[StagedPlan, ...]

    def protects(self, location: str) -> bool:
        """Return whether an open plan may need the data file.

        A file is needed if it is staged, or if its name begins with the plan's id: a run that is executing the plan has
        not recorded the file yet.
        """
        name = location.rsplit("/", 1)[-1]
        return any(name.startswith(f"{plan.id}-") or location in plan.staged_files for plan in self.open)


# --- plans of partition runs ------------------------------------------------------------------------------------------


def find_plans(store: Store, prefix: str) -> list[StagedPlan]:
    """Read the plans of partition runs below `prefix` (from `names.plans_prefix`)."""
    by_id: dict[str, list[ListedObject]] = {}
    for entry in store.list_objects(prefix):
        name = entry.key.removeprefix(prefix)
        if "/" not in name and name.endswith(_JSON):
            by_id.setdefault(name.split(".")[0], []).append(entry)
    return [plan for plan_id, entries in by_id.items() if (plan := _read_plan(store, plan_id, entries)) is not None]


def classify_plans(plans: Iterable[StagedPlan], progress: Progress) -> Plans:
    """Divide the plans of a table at `progress` into open and passed ones."""
    all_plans = list(plans)
    return Plans(
        open=tuple(plan for plan in all_plans if not _is_passed(plan.start, progress)),
        passed=tuple(plan for plan in all_plans if _is_passed(plan.start, progress)),
    )


def _read_plan(store: Store, plan_id: str, entries: list[ListedObject]) -> StagedPlan | None:
    """Return the plan; None if another maintenance run has removed it since it was listed."""
    start: Progress | None = None
    files: frozenset[str] = frozenset()
    # Remove the list of staged files first: without it, a plan is only executed again, which is safe.
    objects = sorted(entries, key=lambda entry: not entry.key.endswith(_STAGED))
    for entry in objects:
        text = store.read_if_exists(entry.key)
        if text is None:
            return None
        if entry.key.endswith(_STAGED):
            files = _parse_staged_files(entry.key, text)
        elif entry.key.endswith(f"/{plan_id}{_JSON}"):
            start = _parse_start(entry.key, text)
    return StagedPlan(plan_id, start, files, tuple(objects))


def find_rejected_plans(store: Store, prefix: str) -> frozenset[str]:
    """Return the ids of the plans below `prefix` (from `names.plans_prefix`) that a person rejected."""
    rejected = set()
    for key in store.keys(prefix):
        if key.endswith(_DECISION):
            plan = key.removesuffix(_DECISION) + _JSON
            decision = find_decision(store, plan)
            if decision is not None and decision.kind is DecisionKind.REJECTED:
                rejected.add(plan_id(plan))
    return frozenset(rejected)


def _is_passed(start: Progress | None, progress: Progress) -> bool:
    if start is None or dict(start) == dict(progress):
        return False
    return all(progress.get(tp, -1) >= offset for tp, offset in start.items())


def _parse_start(key: str, text: bytes) -> Progress | None:
    """Return where a plan starts. All versions of the document have this field in the same form."""
    try:
        return {TopicPartition.parse(tp): int(offset) for tp, offset in json.loads(text)["start"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        logger.warning("plan %s cannot be read (%s): maintenance keeps it and the files that it may need", key, error)
        return None


# --- retries of the quarantine ----------------------------------------------------------------------------------------


def find_open_retries(store: Store, prefix: str, *, taken_part: int) -> list[StagedPlan]:
    """Read the open retries of the quarantine below `prefix` (from `names.retries_prefix`).

    `taken_part` is the number of retries that both tables have committed.
    """
    retries = []
    for key in store.keys(prefix):
        number = key.removeprefix(prefix).removesuffix(_JSON)
        if key.endswith(_JSON) and number.isdecimal() and int(number) >= taken_part:
            files = _parse_staged_files(key, store.read_if_exists(key) or b"{}")
            retries.append(StagedPlan(f"retry-{number}", None, files, ()))
    return retries


# --- plans of sweeps --------------------------------------------------------------------------------------------------


def find_sweep_plans(store: Store, prefix: str, swept: SweepPosition | None) -> Plans:
    """Find the plans of sweeps below `prefix` (from `names.sweeps_prefix`), and read the open ones.

    `swept` is the unique table's position.
    """
    by_id: dict[str, list[ListedObject]] = {}
    for entry in store.list_objects(prefix):
        match = _SWEEP_OBJECT.fullmatch(entry.key.removeprefix(prefix))
        if match is not None:
            by_id.setdefault(match[1], []).append(entry)
    through = -1 if swept is None else swept.sequence
    return Plans(
        open=tuple(_read_sweep_plan(store, *found) for found in by_id.items() if int(found[0]) >= through),
        passed=tuple(
            StagedPlan(plan_id, None, frozenset(), _plan_object_last(entries))
            for plan_id, entries in by_id.items()
            if int(plan_id) < through
        ),
    )


def _read_sweep_plan(store: Store, plan_id: str, entries: list[ListedObject]) -> StagedPlan:
    staged = [entry.key for entry in entries if entry.key.endswith(_STAGED)]
    files = frozenset[str]().union(*(read_strings(store, key) for key in staged))
    return StagedPlan(plan_id, None, files, _plan_object_last(entries))


def _plan_object_last(entries: list[ListedObject]) -> tuple[ListedObject, ...]:
    """Return a sweep's objects in order of removal: a sweep that finds the plan object finds all other objects too."""
    return tuple(sorted(entries, key=lambda e: (e.key.endswith(_JSON) and not e.key.endswith(_STAGED), e.key)))


# --- documents --------------------------------------------------------------------------------------------------------


def read_strings(store: Store, key: str) -> frozenset[str]:
    """Return all strings in a JSON document: the files that it names. Empty if it does not exist or cannot be read.

    Document versions differ in their fields, but all of them name their files as strings.
    """
    try:
        return frozenset(_strings_in(json.loads(store.read_if_exists(key) or b"{}")))
    except ValueError as error:
        logger.warning("%s cannot be read: %s", key, error)
        return frozenset()


def _parse_staged_files(key: str, text: bytes) -> frozenset[str]:
    """Return all locations in the document, in any field: a newer version may name files in further fields."""
    try:
        return frozenset(string for string in _strings_in(json.loads(text)) if "://" in string)
    except ValueError as error:
        logger.warning("%s cannot be read: %s", key, error)
        return frozenset()


def _strings_in(document: object) -> Iterator[str]:
    """Yield all strings among the values of a JSON document, at any depth."""
    if isinstance(document, str):
        yield document
    elif isinstance(document, Mapping):
        for value in document.values():
            yield from _strings_in(value)
    elif isinstance(document, list):
        for value in document:
            yield from _strings_in(value)
