"""The operations that people can order, declared once for the command line, Airflow's forms, the pages and the API.

| module | content |
|---|---|
| `declaration` | the classes of a declaration: parameters with their checks, the operation, the form of a DAG |
| `parameters` | the parameters |
| `catalogue` | the operations, and the forms of the DAGs that execute them |
| `audit_log` | the record of each decision: who, what, when, why and through which surface |
| `here` | operations that the called process executes itself, without a DAG run |

DAG files and `waybill --help` import the declarations, so the declarations import only the standard library.
"""
