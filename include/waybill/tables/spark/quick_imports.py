"""Importing this module pauses Python's garbage collection, for the imports of a Spark job's driver.

Imports create hundreds of thousands of objects that are never freed. Garbage collections during imports find nearly
nothing and take a third of the time (docs/decisions/0017). `waybill.tables.spark.daemon.forked_daemon` ends the pause,
in the driver and in the forked process.

This is a module, not a function, because imports stand before all other statements of a script. Only scripts import it.
"""

import gc

gc.disable()
