"""Airflow's own deadline alerts: an email and a Slack message about each DAG run that has not ended in time.

Airflow's scheduler notices it, and its triggerer runs `tell_of_missed_deadline`. The message goes through the notifiers
of the SMTP and Slack providers, which read the same connections as the watch. docs/production-airflow.md describes the
limits of these alerts, which the alerts of the watch do not have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from waybill.config.connections.masking import without_urls
from waybill.config.models import Config
from waybill.config.models.alerts import EmailChannel, SlackChannel
from waybill.config.models.promises import PromiseSeverity
from waybill.config.models.quantities import rough_duration

if TYPE_CHECKING:
    from airflow.sdk import BaseNotifier

logger = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 20


def deadline_arguments(config: Config, deadline: timedelta | None) -> dict[str, Any]:
    """Return arguments of a DAG whose runs must end within a time after they were queued; {} without a deadline.

    The time counts from the queueing and not from the logical date, which a run triggered by hand does not have.
    """
    channels = _channels(config)
    if deadline is None or not channels:
        return {}
    from airflow.sdk.definitions.callback import AsyncCallback
    from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

    # The callback's arguments are stored with the DAG, since the triggerer may not have the config.
    arguments = {
        "channels": channels,
        "limit": rough_duration(deadline.total_seconds()),
        "airflow_url": config.alerts.airflow_url,
        "runbook": f"{config.alerts.runbooks_url or 'docs/runbooks'}/run-duration.md",
    }
    callback = AsyncCallback(tell_of_missed_deadline, kwargs=arguments)
    alert = DeadlineAlert(reference=DeadlineReference.DAGRUN_QUEUED_AT, interval=deadline, callback=callback)
    return {"deadline": alert}


def _channels(config: Config) -> list[dict[str, Any]]:
    """Return the channels of warnings that Airflow's notifiers can send to, as JSON objects."""
    found = [config.alerts.channels[name] for name in config.alerts.route(PromiseSeverity.WARNING)]
    return [each.model_dump(mode="json") for each in found if isinstance(each, EmailChannel | SlackChannel)]


async def tell_of_missed_deadline(
    channels: Sequence[Mapping[str, Any]], limit: str, airflow_url: str | None, runbook: str, context: Any
) -> None:
    """Send a message about a DAG run to all channels. Airflow's triggerer calls it when a deadline is missed.

    Raises `RuntimeError` after all channels were tried if one of them failed. Airflow does not try again.
    """
    run = context["dag_run"]
    facts = _facts(run, limit, airflow_url, runbook)
    subject = f"[warning] {run['dag_id']}: the run has not ended {limit} after it was queued"
    results = await asyncio.gather(*(_tell(each, subject, facts) for each in channels), return_exceptions=True)
    failed = [
        f"connection {channel['connection']!r}: {type(result).__name__}: {without_urls(str(result))}"
        for channel, result in zip(channels, results, strict=True)
        if isinstance(result, BaseException)
    ]
    for error in failed:
        logger.error("the missed deadline was not told: %s", error)
    if failed:
        raise RuntimeError("; ".join(failed))


def _facts(run: Mapping[str, Any], limit: str, airflow_url: str | None, runbook: str) -> dict[str, str]:
    dag, name = run["dag_id"], run["dag_run_id"]
    facts = {
        "DAG": dag,
        "Run": name,
        "State": str(run["state"]),
        "Queued": str(run["queued_at"]),
        "Deadline": f"{limit} after it was queued",
        "For consumers": "The tables show older data than usual until the run has ended.",
        "Runbook": runbook,
    }
    if airflow_url:
        facts["Airflow"] = f"{airflow_url}/dags/{quote(dag, safe='')}/runs/{quote(name, safe='')}"
    return facts


async def _tell(channel: Mapping[str, Any], subject: str, facts: Mapping[str, str]) -> None:
    notifier = await _notifier(channel, subject, facts)
    # The SMTP provider's asynchronous hook (3.2.0) starts TLS twice, which fails with every server that offers it.
    is_email = channel["type"] == "email"
    sending = asyncio.to_thread(notifier.notify, {}) if is_email else notifier.async_notify({})
    await asyncio.wait_for(sending, _TIMEOUT_SECONDS)


async def _notifier(channel: Mapping[str, Any], subject: str, facts: Mapping[str, str]) -> BaseNotifier:
    from airflow.providers.common.compat.connection import get_async_connection

    connection = await get_async_connection(channel["connection"])
    if channel["type"] == "email":
        from airflow.providers.smtp.notifications.smtp import SmtpNotifier

        email = SmtpNotifier(
            smtp_conn_id=channel["connection"],
            to=channel["to"],
            from_email=channel["sender"],
            subject=subject,
            html_content=_html(subject, facts),
        )
        # The sending thread cannot request the connection from Airflow.
        vars(email.hook)["get_connection"] = lambda _: connection
        return email
    from airflow.providers.slack.notifications.slack import SlackNotifier
    from airflow.providers.slack.notifications.slack_webhook import SlackWebhookNotifier

    from waybill.watch.notify.texts import slack_text

    summary, blocks = slack_text(subject), _slack_blocks(subject, facts)
    if connection.conn_type == "slack":
        return SlackNotifier(
            slack_conn_id=channel["connection"], channel=channel["channel"], text=summary, blocks=blocks
        )
    return SlackWebhookNotifier(slack_webhook_conn_id=channel["connection"], text=summary, blocks=blocks)


def _html(subject: str, facts: Mapping[str, str]) -> str:
    from html import escape

    rows = "".join(
        f"<tr><td style='padding-right: 16px'>{escape(name)}</td><td>{escape(value)}</td></tr>"
        for name, value in facts.items()
    )
    return f"<h3>{escape(subject)}</h3><table>{rows}</table>"


def _slack_blocks(subject: str, facts: Mapping[str, str]) -> list[dict[str, Any]]:
    from waybill.watch.notify.texts import slack_text

    fields = [{"type": "mrkdwn", "text": f"*{name}*\n{slack_text(value)}"} for name, value in facts.items()]
    return [
        {"type": "header", "text": {"type": "plain_text", "text": subject[:150]}},
        {"type": "section", "fields": fields},
    ]
