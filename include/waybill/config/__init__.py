"""The config: the models of the YAML file, connections, and the names of everything that Waybill stores.

- `names`: keys of S3 objects, tables and ids. It does not depend on the config.
- `models`: the YAML file as pydantic models, checked when it is loaded.
- `connections`: reads connections, and derives the clients' settings.
"""
