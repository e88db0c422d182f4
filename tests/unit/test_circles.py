"""No two modules need each other: neither at import time, nor in a function, nor in the types of a signature."""

from __future__ import annotations

import graphlib

import grimp


def test_modules_import_each_other_in_no_circle() -> None:
    graph = grimp.build_graph("waybill", cache_dir=None)
    needed = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        graphlib.TopologicalSorter(needed).prepare()
    except graphlib.CycleError as error:
        circle = " → ".join(error.args[1])
        raise AssertionError(f"{circle}: move what both need into a module of its own") from None
