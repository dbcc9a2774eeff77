"""The BALANCE paper: its settings, tables and results.

A `benchmarks.paper.setting.Setting` names what the paper names. `benchmarks.paper.run.run` trains one,
`benchmarks.paper.tables` lists the settings of each table, and ``python -m benchmarks.paper`` runs and reports them.
"""
