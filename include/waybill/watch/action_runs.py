"""What became of the DAG runs that people ordered on the pages.

The record of an action says what was ordered, not how the run ended. Airflow is asked only while a run of a listed
action has not ended; what it said before is in the document before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from waybill.config import Config
from waybill.connections import AirflowEndpoint
from waybill.ingest.services import FindConnection
from waybill.watch.airflow_api import AirflowApi
from waybill.watch.status import DecisionStatus

__all__ = ["find_action_runs", "known_action_runs"]


def known_action_runs(
    decisions: Sequence[DecisionStatus], before: Sequence[DecisionStatus]
) -> tuple[DecisionStatus, ...]:
    """Return the decisions with the ends of their DAG runs that an earlier watch knew."""
    known = {(each.dag, each.run): each.run_state for each in before}
    return tuple(replace(each, run_state=known.get((each.dag, each.run), "")) for each in decisions)


def find_action_runs(
    config: Config, find: FindConnection, decisions: Sequence[DecisionStatus]
) -> tuple[DecisionStatus, ...]:
    """Return the decisions with the ends of their DAG runs, as far as Airflow knows them.

    Raises `ConfigError` for a connection that cannot be used, and `AirflowUnavailable`.
    """
    open_runs = [each for each in decisions if each.run and not each.run_state]
    if config.airflow.connection is None or not open_runs:
        return tuple(decisions)
    with AirflowApi(AirflowEndpoint.of(find(config.airflow.connection))) as api:
        ended = api.ended_runs({each.dag for each in open_runs}, min(each.at_ms for each in open_runs))
    return tuple(replace(each, run_state=each.run_state or ended.get((each.dag, each.run), "")) for each in decisions)
