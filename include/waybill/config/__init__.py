"""What people declare: the models of the YAML file, connections, and the names of all that Waybill stores.

- `names`: keys of S3 objects, tables and ids. It knows nothing of the config.
- `models`: the YAML file as pydantic models, checked when it is loaded.
- `connections`: where a connection's fields come from, and the clients' settings that follow from them.
"""
