"""Experiments: from a file of settings to results in folders, resumed where they stopped.

How it goes, and which module does what:

1. What to play. A `spec` is one run; everything in it is part of its hash, and so are files of
   one's own (`user_code`). `reading` makes a plan of a file: presets (of `suites`), overrides, and
   lists that multiply runs; `checking` refuses what makes no sense. `suites` does the same for
   all parts of a suite, of which `choosing` takes some. `forecast` counts them and guesses how
   long they take, `places` tells the cells of a table that they fill.
2. What is left of it. A `job` is a run and its folder; `toml` writes its settings. The `runner`
   refuses what cannot be played here (`preflight`), passes over runs that are over, and copies
   those that another suite has finished (`adopting`).
3. Playing. A `sweep` puts together what can be stacked (`ordering`) and fits into memory
   (`capacity`), takes hold of the folders (`entry`), and plays `wave` after wave: rounds are
   written down as they come, and where runs stand is saved now and then (`saving`, `memory`).
   What raises is tried again in halves, until the broken run is alone. `build` makes what the
   engine plays, from datasets on a `datasets`, on a `device`; `environment` tells where that was.
4. By many. `parallel` deals the jobs out as `unit`s to an executor, such as `processes` of this
   machine; each plays its own with a runner as above. `following` reads from the store how they
   get on, for whoever listens (`listener`).

Between processes there is only the store: a run belongs to whoever holds the lock of its folder,
and a folder is right at every moment, so that any process may be killed at any time.
"""
