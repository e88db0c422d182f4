"""The commands `waybill config …`."""

from __future__ import annotations

from pathlib import Path

import typer

from waybill.base.errors import ConfigError
from waybill.config.models import Config, config_path, load_config, reference


def check(*, with_store: bool = False) -> None:
    """Load the config and print that it is valid. Raise `ConfigError`, with a line for each error, if it is not.

    If a stream has expectations, their values are checked with Great Expectations itself, which takes seconds.
    `with_store`: the S3 store is probed too, and a line is printed for each ability. Raises `StoreUnfit` if it lacks an
    ability, `StoreUnavailable` if it does not answer.
    """
    path = config_path()
    config = load_config(path)
    _check_expectations(path, config)
    count = len(config.streams)
    typer.echo(f"{path} is valid: {count} {'stream' if count == 1 else 'streams'} ({', '.join(config.streams)})")
    if with_store:
        _probe_store(config)


def _probe_store(config: Config) -> None:
    from waybill.services.store import Store

    with Store.of(config.storage) as store:
        result = store.probe()
    for finding in result.findings:
        typer.echo(f"{result.where} {finding}")
    result.raise_if_unfit()


def _check_expectations(path: Path, config: Config) -> None:
    expectations = {name: stream.quality.all_expectations for name, stream in config.streams.items()}
    if not any(expectations.values()):
        return
    from waybill.tables.audit.expectations import refused_expectations

    refused = [
        f"{path}: streams.{name}.quality: {error}"
        for name, own in expectations.items()
        for error in refused_expectations(own)
    ]
    if refused:
        raise ConfigError("\n".join(refused))


def print_reference() -> None:
    """Print the reference of the config as Markdown."""
    typer.echo(reference.markdown(), nl=False)


def print_schema() -> None:
    """Print the JSON schema of the config."""
    typer.echo(reference.json_schema())
