"""What a person can do, declared once for the command line, Airflow's forms, the pages and the API.

| module | content |
|---|---|
| `declaration` | what a declaration consists of: parameters with their checks, the operation, the form of a DAG |
| `parameters` | the parameters |
| `catalogue` | the operations, and the forms of the DAGs that do them |
| `audit_log` | the record of who did what, when, why and through which surface |
| `here` | what is done by the process that was asked, and not by a DAG run |

DAG files and `waybill --help` import the declarations, so those import nothing but the standard library.
"""
