"""The keys, branches and tags of backfills."""

from __future__ import annotations

import hashlib
import re

from waybill.config.names.segments import Folder, own_key, padded
from waybill.config.names.topics import check_stream_name

_BACKFILL = re.compile(r"[0-9]{8}_[0-9a-f]{4}")


def all_backfills_prefix(prefix: str) -> str:
    """Return the prefix of the backfills of all streams."""
    return own_key(prefix, Folder.BACKFILLS, "")


def stream_of_backfill(prefix: str, key: str) -> str:
    """Return the stream of a key below `all_backfills_prefix`."""
    return key.removeprefix(all_backfills_prefix(prefix)).partition("/")[0]


def backfills_prefix(prefix: str, stream: str) -> str:
    """Return the prefix of everything about the backfills of a stream."""
    return own_key(prefix, Folder.BACKFILLS, check_stream_name(stream), "")


def backfill_prefix(prefix: str, stream: str, backfill: str) -> str:
    """Return the prefix of everything about one backfill. Raises `ValueError` if `backfill` is no id of a backfill."""
    return f"{backfills_prefix(prefix, stream)}{check_backfill_id(backfill)}/"


def backfill_request_key(prefix: str, stream: str, backfill: str) -> str:
    """Return the key of a backfill's request. Its audit is beside it (`audit_key`)."""
    return f"{backfill_prefix(prefix, stream, backfill)}request.json"


def backfill_generation_key(prefix: str, stream: str, backfill: str) -> str:
    """Return the key of the request to build a generation that is not live."""
    return f"{backfill_prefix(prefix, stream, backfill)}generation.json"


def backfill_task_key(prefix: str, stream: str, backfill: str, task: int) -> str:
    """Return the key of the result of one task of a backfill."""
    return f"{backfill_prefix(prefix, stream, backfill)}tasks/{task:06d}.json"


def backfill_cut_key(prefix: str, stream: str, backfill: str, side: str, file: str, attempt: int = 0) -> str:
    """Return the key of the record of a data file that was cut: of its rows on one side of the backfill's range.

    `file`: an id of the data file. `attempt` counts the records whose files no longer exist.
    """
    digest = hashlib.sha256(file.encode()).hexdigest()[:32]
    number = f".{attempt}" if attempt else ""
    return f"{backfill_prefix(prefix, stream, backfill)}cuts/{side}/{digest}{number}.json"


def backfill_built_key(prefix: str, stream: str, backfill: str) -> str:
    """Return the key of the record that a backfill is built: both branches exist."""
    return f"{backfill_prefix(prefix, stream, backfill)}built.json"


def backfill_diff_key(prefix: str, stream: str, backfill: str, name: str) -> str:
    """Return the key of an object of a backfill's diff, such as `summary.json` or `000000.parquet`."""
    return f"{backfill_prefix(prefix, stream, backfill)}diff/{name}"


def backfill_event_key(prefix: str, stream: str, backfill: str, number: int) -> str:
    """Return the key of the record of a promotion, an undo or a cancellation; `number`: the number of its claim."""
    return f"{backfill_prefix(prefix, stream, backfill)}events/{padded(number)}.json"


def backfill_plan_id(backfill: str) -> str:
    """Return the id of a backfill as a plan, with which the names of its data files begin."""
    return f"backfill-{check_backfill_id(backfill)}"


def backfill_branch(backfill: str) -> str:
    """Return the branch that holds the table as it would be after the promotion of the backfill."""
    return f"backfill_{check_backfill_id(backfill)}"


def backfill_tag(backfill: str) -> str:
    """Return the tag of a table's last snapshot before a backfill was promoted."""
    return f"before_backfill_{check_backfill_id(backfill)}"


def check_backfill_id(backfill: str) -> str:
    """Return the id of a backfill: its date and four hexadecimal digits, such as `20261122_7f3a`.

    Raises `ValueError` for any other text.
    """
    if not _BACKFILL.fullmatch(backfill):
        raise ValueError(f"{backfill!r} is no id of a backfill, such as 20261122_7f3a")
    return backfill
