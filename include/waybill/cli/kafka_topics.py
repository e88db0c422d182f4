"""`waybill kafka plan` and `waybill kafka apply`: topics as declared in the config."""

from __future__ import annotations

import time

import typer

from waybill.brokers.apply import apply_plan, read_plan_inputs
from waybill.brokers.change_record import record_change
from waybill.brokers.forecast_inputs import connect_cluster
from waybill.brokers.plan import TopicPlan, make_plan
from waybill.brokers.plan_text import describe, plan_document
from waybill.cli.render import print_json
from waybill.cli.targets import current_user, load_streams, open_store
from waybill.config import Config
from waybill.config.quantities import counted, parse_size
from waybill.errors import ConfigError

__all__ = ["apply_topics", "print_plan"]


def print_plan(*, as_json: bool, check: bool) -> None:
    """Print what differs from the declared topics; see `waybill kafka plan --help`."""
    config = _load()
    with connect_cluster(config) as cluster:
        plan = make_plan(read_plan_inputs(cluster, config.kafka.topics))
    if as_json:
        print_json(plan_document(plan))
    else:
        _print(plan, len(config.kafka.topics))
    if check and (plan.steps or plan.refused):
        raise typer.Exit(1)


def _load() -> Config:
    config = load_streams()
    if not config.kafka.topics:
        raise ConfigError("no topic is declared: add kafka.topics to the config")
    return config


def _print(plan: TopicPlan, declared: int) -> None:
    for step in plan.steps:
        typer.echo(describe(step))
    for each in plan.refused:
        typer.echo(f"{each.topic}: not changed: {each.reason}")
    if not plan.steps and not plan.refused:
        typer.echo(f"Kafka has {counted(declared, 'topic')} as declared.")


def apply_topics(
    *, yes: bool, throttle: str, timeout_seconds: float, reason: str, by: str | None, as_json: bool
) -> None:
    """Make Kafka have the declared topics; see `waybill kafka apply --help`."""
    config = _load()
    throttle_bytes = _throttle(throttle)
    with connect_cluster(config) as cluster:
        plan = make_plan(read_plan_inputs(cluster, config.kafka.topics))
        if not as_json:
            _print(plan, len(config.kafka.topics))
        if plan.steps:
            if plan.moves_data and not yes:
                typer.confirm("Copy this data between brokers?", abort=True, err=True)
            with open_store(config) as store:
                now_ms = time.time_ns() // 1_000_000
                record_change(store, now_ms, by=by or current_user(), reason=reason, plan=plan_document(plan))
            left = apply_plan(
                cluster,
                lambda: read_plan_inputs(cluster, config.kafka.topics),
                plan,
                throttle_bytes=throttle_bytes,
                timeout_seconds=timeout_seconds,
                report=lambda line: typer.echo(line, err=True),
            )
        else:
            left = plan
    if as_json:
        print_json({"applied": plan_document(plan), "left": plan_document(left)})
    elif plan.steps:
        _print(left, len(config.kafka.topics))
    if left.steps or left.refused:
        raise typer.Exit(1)


def _throttle(text: str) -> int | None:
    if text == "none":
        return None
    try:
        size = parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: {error}; or none", param_hint="--throttle") from None
    if size < 1:
        raise typer.BadParameter("must be at least one byte a second; or none", param_hint="--throttle")
    return size
