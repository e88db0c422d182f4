"""Operations that the called process executes itself, with a few requests to ZooKeeper, S3 and Kafka."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from waybill.base.errors import ConfigError

if TYPE_CHECKING:
    from waybill.base.decision import Decision
    from waybill.config.models import Config
    from waybill.services.coordination import Pause, PauseAction, Stage, StreamPauses
    from waybill.watch.incidents.book_store import BookStore
    from waybill.watch.incidents.incident import Incident


def acknowledge(books: BookStore, incident: str, decision: Decision) -> Incident:
    """Acknowledge an incident, and return it. The first acknowledgement is kept.

    Raises `ConfigError` if there is no such incident.
    """
    from waybill.watch.incidents import rules
    from waybill.watch.incidents.incident import Acknowledgement

    acknowledgement = Acknowledgement(decision.by, int(time.time() * 1000), decision.reason)
    find_incident(books, incident)
    book = books.change(lambda stored: rules.acknowledge(stored, incident, acknowledgement))
    found = book.find(incident)
    assert found is not None
    return found


def find_incident(books: BookStore, incident: str) -> Incident:
    """Return an incident, open or resolved. Raises `ConfigError` if there is none of this id."""
    book = books.load()
    found = book.find(incident)
    if found is None:
        known = ", ".join(each.id for each in book.incidents if each.is_open) or "none"
        raise ConfigError(f"no incident {incident!r}; open incidents: {known}")
    return found


def decide_pause(
    config: Config, name: str, action: PauseAction, stages: Collection[Stage], decision: Decision
) -> tuple[Pause, StreamPauses]:
    """Pause or resume stages of a stream (without names: all its stages, or all paused ones).

    Return the stored decision, and the stages that are paused after it. Raises `ConfigError` for an unknown stream or a
    stage that the stream does not have, `PauseRefused` if nothing would change.
    """
    from waybill.services.coordination import Pause, PauseAction, Stage, ZooKeeperSession, read_pauses

    stream = config.stream(name)
    existing = {stage for stage in Stage if stream.section(stage) is not None}
    missing = sorted(set(stages) - existing)
    if missing:
        raise ConfigError(f"{name} has no {missing[0]}; it has: {', '.join(sorted(existing))}")
    root = config.zookeeper.root
    with ZooKeeperSession.of(config) as session:
        before = read_pauses(session, root, [name])[name]
        chosen = frozenset(stages or (existing if action is PauseAction.PAUSE else before.active()))
        pause = Pause(action, chosen, decision.by, int(time.time() * 1000), decision.reason)
        return pause, before.decide(session, root, name, pause)
