"""The range that a run of `dedup__<stream>` was asked for, checked before Spark is started for it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

__all__ = ["check_sweep_range"]


def check_sweep_range(context: Mapping[str, Any]) -> None:
    """Hold `since` and `until` of a run's parameters against each other and the time; for a task's `pre_execute`.

    The form checks each by itself (JSON Schema), and cannot compare them; and a run that is not triggered by the form
    may have any others: a misspelt `until` would be no bound at all. Raises `AirflowFailException`, since trying again
    would not help.
    """
    from airflow.sdk.exceptions import AirflowFailException

    from waybill.dedup.since import check_range, parse_instant
    from waybill.errors import ConfigError

    known = context["dag"].params
    strange = sorted(set(context["params"]).difference(known))
    if strange:
        raise AirflowFailException(f"no such parameter: {', '.join(strange)}; there are: {', '.join(known)}")
    given = {name: context["params"].get(name) for name in ("since", "until")}
    try:
        times = {name: parse_instant(name, text) if text else None for name, text in given.items()}
        check_range(times["since"], times["until"], datetime.now(UTC))
    except ConfigError as error:
        raise AirflowFailException(str(error)) from error
