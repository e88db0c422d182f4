"""Airflow plugin `waybill_ui`: Waybill's pages, at /waybill/ui of Airflow's API server and in its navigation."""

from typing import Any, ClassVar

from airflow.plugins_manager import AirflowPlugin

from waybill.interfaces.airflow.ui import URL_PREFIX, WaybillUi


class WaybillPages(AirflowPlugin):
    """Mounts the pages, and shows them in the navigation."""

    name = "waybill_ui"
    fastapi_apps: ClassVar[list[Any]] = [{"app": WaybillUi(), "url_prefix": URL_PREFIX, "name": "Waybill"}]
    # Without a slash at the start: Airflow's page has the path of `[api] base_url` as its base.
    external_views: ClassVar[list[Any]] = [
        {"name": "Waybill", "href": f"{URL_PREFIX[1:]}/", "destination": "nav", "url_route": "waybill"}
    ]
