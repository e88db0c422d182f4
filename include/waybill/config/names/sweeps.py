"""The keys of sweeps and of the key index."""

from __future__ import annotations

import re

from waybill.config.names.segments import MAX_OFFSET, OFFSET_PATTERN, Folder, check_token, own_key, padded
from waybill.config.names.topics import check_stream_name

_MANIFEST = re.compile(rf"/manifests/({OFFSET_PATTERN})\.json\Z")


def sweeps_prefix(prefix: str, stream: str, generation: int, history: str) -> str:
    """Return the prefix of all sweep plans for one history of a unique table, of their staged files and marks.

    `history`: what `history_name` returns.
    """
    return f"{sweeps_of_stream_prefix(prefix, stream)}{generation}/{history}/"


def sweeps_of_stream_prefix(prefix: str, stream: str) -> str:
    """Return the prefix of all sweep plans of a stream."""
    return own_key(prefix, Folder.SWEEPS, check_stream_name(stream), "")


def history_name(unique_uuid: str, rebuild: str | None) -> str:
    """Return the name under which plans and key index of a unique table are stored: its uuid, and the id of a rebuild.

    `rebuild`: the rebuild that made the table's history; None: the history with which the table began.
    """
    return unique_uuid if rebuild is None else f"{unique_uuid}-{rebuild}"


def sweep_plan_key(prefix: str, stream: str, generation: int, history: str, sequence: int) -> str:
    """Return the key of the plan of the sweep that starts after that sequence number of the stream's table.

    Raises `ValueError` if `sequence` is out of range.
    """
    return f"{sweeps_prefix(prefix, stream, generation, history)}{padded(sequence)}.json"


def sweep_marks_key(plan: str, token: str) -> str:
    """Return the key under which one attempt of a sweep's task lists the duplicates that it found.

    `plan` is the key of the sweep's plan. Raises `ValueError` if `token` is malformed.
    """
    return f"{plan.removesuffix('.json')}.marks/{check_token(token)}.parquet"


def key_index_prefix(prefix: str, stream: str, generation: int, history: str) -> str:
    """Return the prefix of the whole key index of one history of a unique table.

    `history`: what `history_name` returns.
    """
    return f"{key_indexes_prefix(prefix, stream)}{generation}/{history}/"


def key_indexes_prefix(prefix: str, stream: str) -> str:
    """Return the prefix of all key indexes of a stream."""
    return own_key(prefix, Folder.DEDUP, check_stream_name(stream), "")


def key_index_manifests_prefix(index: str) -> str:
    """Return the prefix of the index manifests. `index` is the prefix that `key_index_prefix` returns."""
    return f"{index}manifests/"


def key_index_manifest_key(index: str, version: int) -> str:
    """Return the key of an index manifest; a listing returns versions in order.

    Raises `ValueError` if `version` is out of range.
    """
    return f"{key_index_manifests_prefix(index)}{padded(version)}.json"


def key_index_version_of(key: str) -> int | None:
    """Return the version of the index manifest with that key; None for any other key."""
    match = _MANIFEST.search(key)
    return None if match is None or int(match[1]) > MAX_OFFSET else int(match[1])


def key_index_run_key(index: str, bucket: int, first_sequence: int, last_sequence: int, token: str) -> str:
    """Return the key of a sorted run: `<index>runs/<bucket>/<first>-<last>-<token>.parquet`; each attempt has a token.

    Raises `ValueError` if a sequence number, the bucket or the token is out of range.
    """
    if bucket < 0:
        raise ValueError(f"{bucket} is not a bucket: it must be 0 or more")
    return f"{index}runs/{bucket}/{padded(first_sequence)}-{padded(last_sequence)}-{check_token(token)}.parquet"


def key_index_filter_key(run: str) -> str:
    """Return the key of the filter of the sorted run with the key `run`."""
    return f"{run.removesuffix('.parquet')}.fuse16"
