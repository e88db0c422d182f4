"""The keys of restores."""

from __future__ import annotations

import re

from waybill.config.names.segments import OFFSET_PATTERN, Folder, own_key, padded
from waybill.config.names.topics import TopicPartition, check_topic

_RESTORE = re.compile(r"[0-9]{8}_[0-9a-f]{4}")
_MAP_PART = re.compile(rf"({OFFSET_PATTERN})_({OFFSET_PATTERN})\.parquet")


def restores_prefix(prefix: str) -> str:
    """Return the prefix of everything about restores."""
    return own_key(prefix, Folder.RESTORES, "")


def restore_prefix(prefix: str, restore: str) -> str:
    """Return the prefix of everything about one restore. Raises `ValueError` if `restore` is no id of a restore."""
    return f"{restores_prefix(prefix)}{check_restore_id(restore)}/"


def restore_plan_key(prefix: str, restore: str) -> str:
    """Return the key of a restore's plan."""
    return f"{restore_prefix(prefix, restore)}plan.json"


def restore_event_key(prefix: str, restore: str, name: str) -> str:
    """Return the key of the record that something happened once to a restore, such as `target-changed`."""
    return f"{restore_prefix(prefix, restore)}{name}.json"


def restore_report_key(prefix: str, restore: str) -> str:
    """Return the key of the report of a restore's last comparison."""
    return f"{restore_prefix(prefix, restore)}report.json"


def restore_map_prefix(prefix: str, restore: str, tp: TopicPartition) -> str:
    """Return the prefix of the parts of a topic-partition's offset map."""
    return f"{restore_prefix(prefix, restore)}offsets/{check_topic(tp.topic)}/{tp.partition}/"


def restore_map_key(prefix: str, restore: str, tp: TopicPartition, first_offset: int, target_offset: int) -> str:
    """Return the key of the part of an offset map that begins at an archived offset and at an offset of the target."""
    return f"{restore_map_prefix(prefix, restore, tp)}{padded(first_offset)}_{padded(target_offset)}.parquet"


def restore_map_place(key: str) -> tuple[int, int] | None:
    """Return the archived offset and the target offset at which a part begins; None if it is no part's key."""
    match = _MAP_PART.fullmatch(key.rsplit("/", 1)[-1])
    return None if match is None else (int(match[1]), int(match[2]))


def check_restore_id(restore: str) -> str:
    """Return the id of a restore: its date and four hexadecimal digits, such as `20261122_7f3a`.

    Raises `ValueError` for any other text.
    """
    if not _RESTORE.fullmatch(restore):
        raise ValueError(f"{restore!r} is no id of a restore, such as 20261122_7f3a")
    return restore
