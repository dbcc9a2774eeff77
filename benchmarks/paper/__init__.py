"""The BALANCE paper: its settings, tables and results.

`benchmarks.paper.setting.Setting` describes one training run. `benchmarks.paper.run.run` trains
it, `benchmarks.paper.tables` lists the settings of each table, and ``python -m benchmarks.paper``
runs and reports them. ``runs/`` holds the results: a CSV file for each data set.
"""
