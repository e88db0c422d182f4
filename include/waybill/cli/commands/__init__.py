"""The commands with their options, by subject. Each calls the module of `waybill.cli` that implements it."""
