"""One set of functions for both kinds of backfills: of a range of the live generation, and of another generation.

A range is parsed again and replaces rows of `main` (`planning`, `build`, `promotion`). A generation that is not live is
built on its branch, and `main` then shows it (`generation_planning`, `generation_build`, `generation_change`). The kind
depends on the generation that the trigger names and on the live one; later, the stored request has it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from waybill.base.errors import BackfillRefused
from waybill.config.models import Config
from waybill.services.store import Store
from waybill.tables.backfill.build import build_range
from waybill.tables.backfill.generation_build import build_generation
from waybill.tables.backfill.generation_change import change_generation
from waybill.tables.backfill.generation_planning import (
    find_stream,
    is_generation_build,
    plan_generation,
    request_generation,
)
from waybill.tables.backfill.generation_request import (
    BackfillSource,
    GenerationRequest,
    find_generation_request,
    list_generation_requests,
)
from waybill.tables.backfill.planning import Estimate, Trigger, plan_range, request_range
from waybill.tables.backfill.promotion import Changed, change_range
from waybill.tables.backfill.report import BackfillReport, report_backfill
from waybill.tables.backfill.request import AnyRequest, BackfillRequest, find_request, list_requests
from waybill.tables.backfill.states import BackfillAction
from waybill.tables.backfill.work import TaskRunner, in_this_process, reach_step
from waybill.tables.iceberg import load_tables
from waybill.tables.staging.driver import OnStep
from waybill.tables.staging.services import StagingServices, services_of

# --- planning ---------------------------------------------------------------------------------------------------------


def plan_backfill(
    config: Config,
    trigger: Trigger,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    services: StagingServices | None = None,
) -> tuple[AnyRequest, Estimate]:
    """Return the request of a backfill, which is not stored, and its estimate.

    Raises `BackfillRefused`, with the valid values, `ConfigError` for an unknown stream, `ProgressLost`, or a retriable
    error of a service that does not answer.
    """
    with services_of(config, services) as opened:
        name, is_build = _kind(config, trigger, opened)
        if is_build:
            return plan_generation(config, name, trigger, now=now, services=opened)
        return plan_range(config, name, trigger, now=now, services=opened)


def request_backfill(
    config: Config,
    trigger: Trigger,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    on_step: OnStep = reach_step,
    services: StagingServices | None = None,
) -> tuple[AnyRequest, Estimate]:
    """Store the request of a backfill, and return it with its estimate. The same token returns the same request.

    Calls `on_step` with `requested`. Raises as `plan_backfill` does.
    """
    with services_of(config, services) as opened:
        name, is_build = _kind(config, trigger, opened)
        if is_build:
            return request_generation(config, name, trigger, now=now, on_step=on_step, services=opened)
        return request_range(config, name, trigger, now=now, on_step=on_step, services=opened)


def _kind(config: Config, trigger: Trigger, services: StagingServices) -> tuple[str, bool]:
    """Return the stream that has the generation, and whether the backfill is a generation build."""
    if trigger.source not in list(BackfillSource):
        raise BackfillRefused(f"there is no source {trigger.source!r}; the sources: {', '.join(BackfillSource)}")
    name = find_stream(config, trigger.stream, trigger.generation)
    stream = config.stream(name)
    return name, is_generation_build(stream, load_tables(services.catalog, stream))


# --- stored requests --------------------------------------------------------------------------------------------------


def find_backfill(store: Store, config: Config, name: str, backfill: str) -> AnyRequest:
    """Return the request of a backfill of a stream, or of another generation of its table.

    Raises `BackfillRefused`, with the ids that exist, if there is none; `ConfigError` for an unknown stream.
    """
    for each in _streams_of_table(config, name):
        request = find_generation_request(store, each, backfill)
        if request is not None:
            return request
    return find_request(store, name, backfill)


def _streams_of_table(config: Config, name: str) -> list[str]:
    table = config.stream(name).table
    return [name, *(each for each, stream in config.streams.items() if stream.table == table and each != name)]


def report_backfills(store: Store, stream: str) -> list[BackfillReport]:
    """Return what is known of all backfills of a stream, oldest first."""
    requests: list[AnyRequest] = [*list_requests(store, stream), *list_generation_requests(store, stream)]
    return [report_backfill(store, each) for each in sorted(requests, key=lambda each: (each.at, each.id))]


# --- building and changing --------------------------------------------------------------------------------------------


def run_backfill(
    config: Config,
    name: str,
    backfill: str,
    for_each: TaskRunner = in_this_process,
    *,
    parallel: int | None = None,
    bytes_per_second: float | None = None,
    slots: int = 1,
    on_step: OnStep = reach_step,
    services: StagingServices | None = None,
) -> BackfillReport:
    """Build a requested backfill, or continue, and return its report. `slots`: how many tasks can run side by side.

    `parallel` and `bytes_per_second` limit the build of a range (`build_range`). Raises what `build_range` and
    `build_generation` raise, and `BackfillRefused` for a limit that does not apply.
    """
    with services_of(config, services) as opened:
        request = find_backfill(opened.store, config, name, backfill)
        if isinstance(request, BackfillRequest):
            build_range(
                config,
                name,
                backfill,
                for_each,
                parallel=parallel,
                bytes_per_second=bytes_per_second,
                on_step=on_step,
                services=opened,
            )
        elif parallel is not None or bytes_per_second is not None:
            raise BackfillRefused(
                f"backfill {backfill} builds generation {request.generation} by lanes and partition runs, which have "
                f"limits of their own: set `ingest.rate_limit` and `partition.run_bytes` of stream {request.stream}"
            )
        else:
            build_generation(config, request, for_each, slots=slots, on_step=on_step, services=opened)
        return report_backfill(opened.store, request)


def change_backfill(
    config: Config,
    name: str,
    backfill: str,
    action: BackfillAction,
    *,
    by: str,
    reason: str,
    accept_failed_checks: bool = False,
    for_each: TaskRunner = in_this_process,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    on_step: OnStep = reach_step,
    services: StagingServices | None = None,
) -> Changed:
    """Promote, undo or cancel a backfill, and return the event. Raises what `change_range` or `change_generation` does.

    `accept_failed_checks`: promote a range even if its audit has failed. Runs of a generation are audited one by one.
    """
    with services_of(config, services) as opened:
        request = find_backfill(opened.store, config, name, backfill)
        if isinstance(request, GenerationRequest):
            return change_generation(
                config, request, action, by=by, reason=reason, now=now, on_step=on_step, services=opened
            )
        return change_range(
            config,
            name,
            backfill,
            action,
            by=by,
            reason=reason,
            accept_failed_checks=accept_failed_checks,
            for_each=for_each,
            now=now,
            on_step=on_step,
            services=opened,
        )
