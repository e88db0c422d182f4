"""The promises about consumer groups, and when each group last committed a new offset."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import timedelta

from waybill.config.models.kafka_promises import GroupLag, KafkaPromiseName
from waybill.config.models.quantities import counted, rough_duration
from waybill.watch.incidents.finding import Finding
from waybill.watch.kafka_cluster.kafka_finding import kafka_finding, unknown_finding
from waybill.watch.kafka_cluster.readings import GroupReading, Groups

Commits = Mapping[str, tuple[int, int]]
"""For each consumer group: the sum of its committed offsets, and since when the sum is unchanged (epoch ms)."""


def follow_commits(commits: Commits, groups: Groups, now_ms: int) -> dict[str, tuple[int, int]]:
    """Return since when the committed offsets of each group are unchanged. A group without lag has nothing to commit.

    A group that could not be read keeps its entry. The entry of a group that no longer exists in Kafka is removed.
    """
    found = {name: commits[name] for name in groups.unread if name in commits}
    for name, group in groups.read.items():
        committed, since_ms = commits.get(name, (-1, now_ms))
        waits = group.lag > 0 or group.unread_ends > 0
        found[name] = (group.committed, since_ms if committed == group.committed and waits else now_ms)
    return found


def group_findings(watched: Mapping[str, GroupLag], groups: Groups, commits: Commits, now_ms: int) -> list[Finding]:
    """Return a finding about each group.

    `watched`: settings by pattern. `commits` already include those of `groups`.
    """
    promise, found = KafkaPromiseName.GROUP_LAG, list[Finding]()
    for name, group in groups.read.items():
        if (settings := _settings(watched, name)) is not None:
            found.append(_lag(name, group, settings, commits, now_ms))
    for name, why in groups.unread.items():
        if (settings := _settings(watched, name)) is not None:
            found.append(unknown_finding(promise, settings, why, limit=_limit(settings), subject=name))
    for pattern in _without_group(watched, {*groups.read, *groups.unread}):
        why = "no group that the user may describe matches this pattern"
        found.append(unknown_finding(promise, watched[pattern], why, subject=pattern))
    return found


def _settings(watched: Mapping[str, GroupLag], group: str) -> GroupLag | None:
    return next((each for pattern, each in watched.items() if re.fullmatch(pattern, group)), None)


def _without_group(watched: Mapping[str, GroupLag], names: Collection[str]) -> list[str]:
    return [pattern for pattern in watched if not any(re.fullmatch(pattern, name) for name in names)]


def _limit(settings: GroupLag) -> str:
    return f"at most {counted(settings.limit, 'message')}"


def _lag(name: str, group: GroupReading, settings: GroupLag, commits: Commits, now_ms: int) -> Finding:
    """Return a group's lag. A group is frozen if it commits nothing while there is at least one message to consume."""
    _, since_ms = commits.get(name, (0, now_ms))
    silent = timedelta(milliseconds=now_ms - since_ms)
    is_frozen = group.lag > 0 and silent > settings.commits_within
    is_broken = is_frozen or group.lag > settings.limit
    if group.unread_ends and not is_broken:
        why = f"the ends of {counted(group.unread_ends, 'log')} are not known: no leader answered"
        return unknown_finding(KafkaPromiseName.GROUP_LAG, settings, why, limit=_limit(settings), subject=name)
    lag = counted(group.lag, "message")
    detail = f"the group is {group.state or 'in an unknown state'}"
    if is_frozen:
        detail += ", and it commits nothing while messages wait: its consumers may hang, however small the lag is"
    return kafka_finding(
        KafkaPromiseName.GROUP_LAG,
        settings,
        now_ms,
        broken=is_broken,
        figure=f"{lag}, no commit for {rough_duration(silent.total_seconds())}" if is_frozen else lag,
        limit=_limit(settings),
        detail=detail,
        value=float(group.lag),
        subject=name,
        since_ms=since_ms if is_frozen else None,
    )
