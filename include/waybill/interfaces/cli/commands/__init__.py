"""The commands with their options, by subject. Each calls the module of `waybill.interfaces.cli` that implements it."""
