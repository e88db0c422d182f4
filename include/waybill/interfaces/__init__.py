"""How people and schedulers use Waybill: the command line, the pages, and Airflow.

- `cli`: the command `waybill`.
- `web`: the pages in Airflow's UI.
- `operations`: what a person can do, declared once for the others.
- `airflow`: tasks, parameters, and the plugin's API. The one package that imports Airflow.
"""
