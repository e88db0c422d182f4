"""The keys of the watch: readings of earlier watches, the copy of the incidents, and the objects of the pages."""

from __future__ import annotations

from datetime import UTC, date, datetime

from waybill.config.names.segments import Folder, own_key


def actions_prefix(prefix: str, day: date) -> str:
    """Return the prefix of the actions that were recorded on a day (UTC). Their keys sort by time."""
    return own_key(prefix, Folder.WATCH, "actions", f"{day:%Y-%m-%d}") + "/"


def action_key(prefix: str, at_ms: int, action: str) -> str:
    """Return the key of the record of an action, which was begun at a time (epoch ms). `action`: its id."""
    return f"{actions_prefix(prefix, day_of(at_ms))}{at_ms:013d}-{action}.json"


def action_outcome_key(prefix: str, at_ms: int, action: str) -> str:
    """Return the key of the outcome of an action."""
    return f"{actions_prefix(prefix, day_of(at_ms))}{at_ms:013d}-{action}.outcome.json"


def day_marks_prefix(prefix: str) -> str:
    """Return the prefix of all day marks. Their keys sort by day."""
    return own_key(prefix, Folder.WATCH, "days") + "/"


def day_mark_key(prefix: str, day: date) -> str:
    """Return the key of the committed offsets at the start of a day (UTC)."""
    return f"{day_marks_prefix(prefix)}{day:%Y-%m-%d}.json.gz"


def day_of(time_ms: int) -> date:
    """Return the day (UTC) of a time. Epoch ms."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).date()


def incidents_key(prefix: str) -> str:
    """Return the key of the copy of the incidents, which is read while ZooKeeper does not answer."""
    return own_key(prefix, Folder.WATCH, "incidents.json")


def interim_incidents_prefix(prefix: str) -> str:
    """Return the prefix of the books of incidents that were stored while ZooKeeper did not answer."""
    return own_key(prefix, Folder.WATCH, "incidents-interim") + "/"


def interim_incidents_key(prefix: str, number: int) -> str:
    """Return the key of such a book. Its number is higher than those of the books from which it was made."""
    return f"{interim_incidents_prefix(prefix)}{number:012d}.json.gz"


def kafka_memory_key(prefix: str) -> str:
    """Return the key of the readings of the Kafka cluster that the watch stores."""
    return own_key(prefix, Folder.WATCH, "kafka.json.gz")


def ledger_result_key(prefix: str, stream: str) -> str:
    """Return the key of the result of the newest recorded ledger of a stream."""
    return own_key(prefix, Folder.WATCH, "ledgers", f"{stream}.json")


def samples_key(prefix: str) -> str:
    """Return the key of the offsets that the watch has read."""
    return own_key(prefix, Folder.WATCH, "samples.json.gz")


def status_key(prefix: str) -> str:
    """Return the key of the status document, which the pages in Airflow's UI show."""
    return own_key(prefix, Folder.WATCH, "status.json.gz")


def table_states_key(prefix: str) -> str:
    """Return the key of the state of the tables that the watch has read."""
    return own_key(prefix, Folder.WATCH, "tables.json.gz")


def volumes_key(prefix: str) -> str:
    """Return the key of the messages of each hour that the watch has counted."""
    return own_key(prefix, Folder.WATCH, "volumes.json.gz")
