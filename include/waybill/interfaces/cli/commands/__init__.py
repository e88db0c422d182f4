"""The commands with their options, by subject. Each calls the module of `waybill.interfaces.cli` that implements it.

The two are apart because every implementation needs the config and the client of a service, and `waybill --help` and
the shell's completion must wait for neither (`tests/unit/interfaces/cli/test_command_line.py`).
"""
