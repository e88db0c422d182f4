"""Waybill's pages in Airflow's UI: they show the status document, and offer actions, each of which is recorded.

| module | content |
|---|---|
| `app` | the FastAPI app: pages, fragments for polling, static files |
| `reading` | the status document, read from S3 at most once every few seconds |
| `frame` | parts that all pages share: navigation, user, freshness, services that do not answer |
| `figures` | figures with their tone, and the link or the command behind them |
| `chain_bar` | the chain of a topic-partition drawn to scale, and trends |
| `streams_page`, `stream_page`, `other_pages` | the page models: frozen dataclasses of a status document |
| `forms` | the forms of actions, with the equivalent command |
| `actions` | take an action once, and record it first |
| `perform` | execute an action |
| `csrf` | tokens against forged requests |
| `trace` | the path of one message: object, row, duplicates |

It does not import Airflow or the watch's services: `airflow.ui` provides the users, and mounts the app.
"""
