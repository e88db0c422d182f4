"""The keys of partition runs, quarantine retries and groups: plans, staged files, audits, decisions, results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from waybill.config.names.segments import Folder, check_token, own_key
from waybill.config.names.topics import TopicPartition, check_stream_name


def plans_prefix(prefix: str, stream: str, generation: int, table_uuid: str) -> str:
    """Return the prefix of all plans of a stream's generation, and of the documents of their staged files."""
    return own_key(prefix, Folder.PLANS, check_stream_name(stream), str(generation), table_uuid, "")


def plan_key(
    prefix: str,
    stream: str,
    generation: int,
    table_uuid: str,
    progress: Mapping[TopicPartition, int],
    attempt: int = 0,
) -> str:
    """Return the key of the plan of the partition run that starts from `progress`. The same start gives the same key.

    The key contains the table's uuid: a table that was dropped and created again also starts without progress, but must
    not execute the plans of its predecessor. `attempt` counts the plans with this start that did not advance the
    progress.
    """
    canonical = json.dumps(sorted((str(tp), offset) for tp, offset in progress.items()))
    if attempt:
        canonical += str(attempt)
    digest = hashlib.sha256(canonical.encode()).hexdigest()[:32]
    return f"{plans_prefix(prefix, stream, generation, table_uuid)}{digest}.json"


def staged_key(plan: str) -> str:
    """Return the key of the document that lists the staged files of the plan with the key `plan`."""
    return plan.removesuffix(".json") + ".staged.json"


def audit_key(plan: str) -> str:
    """Return the key of the result of the audit of the plan with the key `plan`."""
    return plan.removesuffix(".json") + ".audit.json"


def plan_of_audit(key: str) -> str | None:
    """Return the key of the plan whose audit has the key `key`; None if this is no key of an audit."""
    return key.removesuffix(".audit.json") + ".json" if key.endswith(".audit.json") else None


def decision_key(plan: str) -> str:
    """Return the key of a person's decision about the held plan with the key `plan`."""
    return plan.removesuffix(".json") + ".decision.json"


def data_docs_key(prefix: str, stream: str, plan: str) -> str:
    """Return the key of the page about the audit of a plan, given by its id."""
    return own_key(prefix, Folder.QUALITY, check_stream_name(stream), f"{plan}.html")


def retries_prefix(prefix: str, stream: str, generation: int, table_uuid: str) -> str:
    """Return the prefix of everything about the retries of one table's quarantine."""
    return own_key(prefix, Folder.RETRIES, check_stream_name(stream), str(generation), table_uuid, "")


def retry_key(prefix: str, stream: str, generation: int, table_uuid: str, number: int) -> str:
    """Return the key of the document of one retry: `<prefix>/retries/<stream>/<generation>/<uuid>/<number>.json`.

    Each table numbers its retries from 0. Raises `ValueError` for a negative number.
    """
    if number < 0:
        raise ValueError(f"{number} is no number of a retry")
    return f"{retries_prefix(prefix, stream, generation, table_uuid)}{number}.json"


def retry_offsets_key(retry: str, token: str) -> str:
    """Return the key of the list of messages that one attempt at the retry with the key `retry` has staged.

    Raises `ValueError` if `token` is malformed.
    """
    return f"{retry.removesuffix('.json')}.{check_token(token)}.parquet"


def group_results_key(prefix: str, group: str, job: str) -> str:
    """Return the key of the results of a group's last Spark application: `<prefix>/groups/<group>/<job>.json`."""
    return own_key(prefix, Folder.GROUPS, check_stream_name(group), f"{job}.json")
