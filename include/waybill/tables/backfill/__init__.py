"""Backfills: build a range of a stream's table again from the archive, compare it, promote it, and undo that.

| module | content |
|---|---|
| `choice`, `ranges` | the offsets: a person's choice, the ranges, and where data files lie |
| `planning`, `request` | the checks, the estimate, and the stored request with its tasks |
| `build`, `results` | executing the tasks, the branches, the audit |
| `diff`, `compare` | the differences between the built rows and the table's |
| `replace`, `cuts` | replacing a range in a table: files removed, added, and cut at the bounds |
| `states`, `events`, `promotion` | promoting, undoing and cancelling: claims, and what they do |
| `generation_…`, `archiving` | the same for a generation that is not live: its request, its build, its promotion |
| `kinds`, `report` | both kinds of backfills behind one set of functions, and what is known of one |
"""
