"""When a backup object is completed (step 5 of the commit protocol): by the upload policy, for every source."""

from __future__ import annotations

from dataclasses import dataclass

from waybill.archive.chain.backup_object import BackupObject
from waybill.config.models import UploadPolicy


@dataclass(frozen=True, slots=True)
class CutObject:
    """A backup object that is due to be completed."""

    backup_object: BackupObject
    seconds: float
    """The time since the object was begun."""


def is_due(policy: UploadPolicy, backup_object: BackupObject, now_ms: int) -> bool:
    """Return whether the oldest message is `max_age` old.

    A message without a timestamp, or with a future one, is also due.
    """
    limit_ms, oldest_ms = max_age_ms(policy), backup_object.oldest_ms
    if not limit_ms or oldest_ms is None or oldest_ms < 0:
        return True
    age_ms = now_ms - oldest_ms
    return age_ms < 0 or age_ms >= limit_ms


def max_age_ms(policy: UploadPolicy) -> int:
    """Return the age in milliseconds at which an object is due; 0 if it is due at once."""
    return int(policy.max_age.total_seconds() * 1000)
