"""How people and schedulers use Waybill: the command line, the pages, and Airflow.

- `cli`: the command `waybill`.
- `web`: the pages in Airflow's UI.
- `airflow`: tasks, parameters, and the plugin's API. The one package that imports Airflow.
"""
