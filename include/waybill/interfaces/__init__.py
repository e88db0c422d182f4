"""How people and schedulers use Waybill: the command line, the pages, and Airflow.

- `cli`: the command `waybill`.
- `web`: the pages in Airflow's UI.
- `operations`: the actions that people can take, declared once for the other packages.
- `airflow`: tasks, parameters, and the plugin's API. Only this package imports Airflow.
"""
