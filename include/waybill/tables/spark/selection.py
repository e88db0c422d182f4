"""Which streams a job works on: the streams of a group, some of them, or streams by name.

This module imports nothing but the config: DAG files import it when they are parsed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from waybill.base.errors import ConfigError
from waybill.config.models import Config
from waybill.config.names import Stage

logger = logging.getLogger(__name__)


def streams_of_group(config: Config, job: Stage, group: str) -> list[str]:
    """Return the streams of a group. Raises `ConfigError` with the known groups if there are none."""
    groups = config.streams_by_group(job)
    if group not in groups:
        raise ConfigError(
            f"no stream is in the {job} group {group!r}; groups with streams: {', '.join(sorted(groups)) or 'none'}. A "
            f"stream joins a group with `{job}: {{group: {group}}}`"
        )
    return groups[group]


def select_streams(config: Config, job: Stage, group: str | None, names: Sequence[str]) -> list[str]:
    """Return `names`, each once, or all streams of `group` if `names` is empty.

    Raises `ConfigError` for a name that the config, or the group, does not have, with the names that it has.
    """
    wanted = list(dict.fromkeys(names))
    if group is None:
        for name in wanted:
            config.stream(name)
        return wanted
    members = streams_of_group(config, job, group)
    unknown = sorted(set(wanted).difference(members))
    if unknown:
        raise ConfigError(
            f"{', '.join(map(repr, unknown))}: not in the {job} group {group!r}; its streams: {', '.join(members)}"
        )
    return wanted or members


def active_streams(config: Config, job: Stage, names: Iterable[str]) -> list[str]:
    """Return the streams for which the job is not paused, and log the paused ones.

    Raises `CoordinationUnavailable` when ZooKeeper, where pauses are recorded, does not answer.
    """
    from waybill.services.coordination import ZooKeeperSession, read_pauses

    names = list(names)
    with ZooKeeperSession.of(config) as session:
        pauses = read_pauses(session, config.zookeeper.root, names)
    paused = {name: decisions.active().get(job) for name, decisions in pauses.items()}
    for name, pause in paused.items():
        if pause is not None:
            logger.warning("%s: left out, since %s is paused by %s: %s", name, job, pause.by, pause.reason)
    return [name for name in names if paused[name] is None]
