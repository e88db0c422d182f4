"""`waybill metrics`: print or serve the metrics of all streams."""

from __future__ import annotations

import typer

from waybill.base.errors import ConfigError
from waybill.interfaces.cli.targets import load_streams


def run(serve: str | None) -> None:
    """Print the metrics once, or serve them; see `waybill metrics --help`."""
    address = None if serve is None else _parse_address(serve)
    from waybill.watch.metrics.endpoint import WatchCollector, metrics_text, serve_metrics

    collector = WatchCollector(load_streams)
    if address is None:
        text, failed = metrics_text(collector)
        typer.echo(text, nl=False)
        if failed:
            typer.echo(f"these figures cannot be read (see above): {', '.join(failed)}", err=True)
            raise typer.Exit(1)
        return
    try:
        serve_metrics(collector, *address, lambda url: typer.echo(f"serving metrics at {url}", err=True))
    except OSError as error:
        raise ConfigError(f"--serve {serve}: {error.strerror or error}") from error


def _parse_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"--serve {text}: give an address and a port, such as 127.0.0.1:9464")
    return host.strip("[]"), int(port)
