"""The names of tables, and of the branches of generations, runs and rebuilds."""

from __future__ import annotations

from datetime import UTC, datetime

from waybill.config.names.segments import Folder, own_key
from waybill.config.names.topics import check_stream_name

_GENERATION_REF = "generation_"


def quarantine_table_name(table: str) -> str:
    """Return the name of the quarantine table of a stream's table."""
    return f"{table}_quarantine"


def unique_table_name(table: str) -> str:
    """Return the name of the unique table of a stream's table, which has each message key once."""
    return f"{table}_unique"


def duplicates_table_name(table: str) -> str:
    """Return the name of the duplicates table of a stream's table, which has the duplicates."""
    return f"{table}_duplicates"


def name_with_generation(name: str, generation: int) -> str:
    """Return a name with its generation: `analytics.flights` in generation 2 is `analytics.flights_g2`.

    The directories of the `files` sink have such names. Tables had them before all generations shared one table.
    """
    return f"{name}_g{generation}"


def generation_ref(generation: int) -> str:
    """Return the branch of a generation that is not live."""
    return f"{_GENERATION_REF}{generation}"


def generation_of_ref(ref: str) -> int | None:
    """Return the generation whose rows a branch holds; None for any other branch or tag."""
    number = ref.removeprefix(_GENERATION_REF)
    return int(number) if number != ref and number.isdecimal() else None


def generation_changes_prefix(prefix: str, stream: str) -> str:
    """Return the prefix of the records of all changes of the live generation, which sort by time."""
    return own_key(prefix, Folder.GENERATIONS, check_stream_name(stream), "")


def generation_change_key(prefix: str, stream: str, at: datetime) -> str:
    """Return the key of the record of a change of the live generation, named after its time in UTC."""
    return f"{generation_changes_prefix(prefix, stream)}{at.astimezone(UTC):%Y%m%dT%H%M%S%f}Z.json"


def rebuild_ref(rebuild: str) -> str:
    """Return the branch that holds the rows of a rebuild of the unique table until they are published."""
    return f"rebuild_{rebuild}"


def run_ref(plan: str) -> str:
    """Return the branch that holds the rows of a plan until they are published: `run_` and 16 characters of its id."""
    return f"run_{plan[:16]}"
