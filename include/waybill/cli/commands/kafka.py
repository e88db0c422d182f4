"""Commands about the Kafka cluster that the streams come from."""

from __future__ import annotations

import typer

__all__ = ["app"]

app = typer.Typer()
kafka_app = typer.Typer(help="Kafka itself: topics as declared, risks, losses, producers.", no_args_is_help=True)
app.add_typer(kafka_app, name="kafka")
