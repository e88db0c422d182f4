"""`waybill kafka plan` and `waybill kafka apply`: topics as declared in the config."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import typer

from waybill.base.decision import Decision
from waybill.base.errors import ConfigError
from waybill.config.models import Config
from waybill.config.models.quantities import counted
from waybill.interfaces.cli.render import Output, print_json
from waybill.interfaces.cli.targets import current_user, load_streams, open_store, parse_size_option
from waybill.interfaces.operations.audit_log import logged
from waybill.interfaces.operations.catalogue import APPLY_TOPICS
from waybill.watch.kafka_cluster.apply import apply_plan, read_plan_inputs
from waybill.watch.kafka_cluster.change_record import record_change
from waybill.watch.kafka_cluster.forecast_inputs import connect_cluster
from waybill.watch.kafka_cluster.plan_text import describe, describe_left, plan_document
from waybill.watch.kafka_cluster.throttle import Throttle
from waybill.watch.kafka_cluster.topics_plan import RiskyConfigs, TopicPlan, make_plan


def print_plan(*, as_json: bool, check: bool) -> None:
    """Print the differences from the declared topics; see `waybill kafka plan --help`."""
    config = _load()
    with connect_cluster(config) as cluster, open_store(config) as store:
        plan = make_plan(read_plan_inputs(cluster, store, config.kafka.topics))
    Output(as_json).show(plan, partial(_print, declared=len(config.kafka.topics)), plan_document)
    if check and (plan.steps or plan.refused):
        raise typer.Exit(1)


def _load() -> Config:
    config = load_streams()
    if not config.kafka.topics:
        raise ConfigError("no topic is declared: add kafka.topics to the config")
    return config


def _print(plan: TopicPlan, declared: int, *, err: bool = False) -> None:
    for step in plan.steps:
        typer.echo(describe(step), err=err)
    _print_refused(plan, err=err)
    if not plan.steps and not plan.refused:
        typer.echo(f"Kafka has {counted(declared, 'topic')} as declared.", err=err)


def _print_refused(plan: TopicPlan, *, err: bool = False) -> None:
    for each in plan.refused:
        typer.echo(f"{each.topic}: not changed: {each.reason}", err=err)


def _print_left(plan: TopicPlan, declared: int, *, allow_loss: bool, err: bool) -> None:
    for step in plan.steps:
        typer.echo(describe_left(step, allow_loss=allow_loss), err=err)
    _print_refused(plan, err=err)
    if not plan.steps and not plan.refused:
        typer.echo(f"Kafka has {counted(declared, 'topic')} as declared.", err=err)


def apply_topics(
    *,
    yes: bool,
    allow_loss: bool,
    throttle: str,
    timeout_seconds: float,
    reason: str,
    by: str | None,
    as_json: bool,
) -> None:
    """Make Kafka have the declared topics; see `waybill kafka apply --help`."""
    config = _load()
    throttle_bytes = None if throttle == "none" else parse_size_option("--throttle", throttle, also="; or none")
    declared = config.kafka.topics

    def report(line: str) -> None:
        typer.echo(line, err=True)

    with connect_cluster(config) as cluster, open_store(config) as store:
        plan = left = make_plan(read_plan_inputs(cluster, store, declared))
        _print(plan, len(declared), err=as_json)
        if plan.steps:
            question = _question(plan, allow_loss=allow_loss)
            if question and not yes:
                typer.confirm(question, abort=True, err=True)
            decision = Decision(reason, by or current_user())
            changes = allow_loss or not all(isinstance(step, RiskyConfigs) for step in plan.steps)
            if changes:
                document = {"allow_loss": allow_loss, **plan_document(plan)}
                record_change(store, decision.at_ms, by=decision.by, reason=reason, plan=document)
            with logged(config, APPLY_TOPICS, decision, {}) if changes else nullcontext():
                left = apply_plan(
                    cluster,
                    lambda: read_plan_inputs(cluster, store, declared),
                    plan,
                    Throttle(cluster, store, throttle_bytes, report),
                    allow_loss=allow_loss,
                    timeout_seconds=timeout_seconds,
                    report=report,
                )
            _print_left(left, len(declared), allow_loss=allow_loss, err=as_json)
    if as_json:
        print_json({"applied": plan_document(plan), "left": plan_document(left)})
    if left.steps or left.refused:
        raise typer.Exit(1)


def _question(plan: TopicPlan, *, allow_loss: bool) -> str:
    """Return the question to ask before a plan is executed; '' if the plan needs no approval."""
    parts = [
        "copy this data between brokers" if plan.moves_data else "",
        "add these topic-partitions, which cannot be undone" if plan.adds_partitions else "",
        "make the changes that can lose messages" if plan.risks_messages and allow_loss else "",
    ]
    text = "; ".join(part for part in parts if part)
    return f"{text[0].upper()}{text[1:]}?" if text else ""
