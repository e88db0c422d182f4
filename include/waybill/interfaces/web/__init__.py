"""Waybill's pages in Airflow's UI: what the status document says, and actions with one recorded click.

| module | content |
|---|---|
| `app` | the FastAPI app: pages, fragments for polling, static files |
| `reading` | the status document, read from S3 at most once every few seconds |
| `frame` | what all pages share: navigation, user, freshness, services that are away |
| `figures` | figures with their tone, and the link or the command behind them |
| `chain_bar` | the chain of a topic-partition drawn to scale, and trends |
| `streams_page`, `stream_page`, `other_pages` | the page models: frozen dataclasses of a status document |
| `forms` | the forms of actions, with the CLI command that does the same |
| `actions` | an action that is taken once, and recorded first |
| `perform` | what an action does |
| `csrf` | tokens against forged requests |
| `trace` | one message on its way: object, row, duplicates |

It knows neither Airflow nor the watch's services: `airflow.ui` gives it the users, and mounts it.
"""
