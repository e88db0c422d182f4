"""Airflow plugin `waybill_replay`: the HTTP API of replay requests, at /waybill/replay of Airflow's API server."""

from typing import Any, ClassVar

from airflow.plugins_manager import AirflowPlugin

from waybill.interfaces.airflow.replay_api import URL_PREFIX, ReplayApi


class WaybillReplay(AirflowPlugin):
    """Mounts the API."""

    name = "waybill_replay"
    fastapi_apps: ClassVar[list[Any]] = [{"app": ReplayApi(), "url_prefix": URL_PREFIX, "name": "Waybill replay"}]
