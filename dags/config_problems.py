"""Shows the errors of the config in Airflow's UI, as the import error of this file, which has no DAG.

The other files leave out a stream with an error, and their DAGs continue with the others.
"""

from waybill.config.models import load_config

load_config()
