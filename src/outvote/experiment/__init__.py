"""Experiments: from a file of settings to results in folders, resumed where they stopped.

1. `run_spec`: the settings of one run, and its hash. `plan`: a file or a suite becomes runs with
   folders (presets, overrides, lists that multiply). `choosing`: some rules, attacks and parts of a
   suite. `forecast`: how many runs are left, and how long they take.
2. `runner` skips finished runs, copies those of other suites (`adopting`), and trains the rest in
   stacks (`stack_run`) that `builder` makes; `dataset_cache` loads the data, a user's own too. A
   stack that raises is retried in halves, until the broken run is alone. `environment` describes
   the machine, `listener` receives progress, `progress` shows it, `stop_signal` asks to save and
   stop.
3. `scheduler` deals runs out to an executor, such as the `processes` of this machine.

Between processes there is only the store: a run belongs to the holder of its folder's lock, and a
folder is consistent at every moment, so any process may be killed at any time.
"""
