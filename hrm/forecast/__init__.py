"""How much work the cluster gets next, and how many nodes that needs.

The volume of tasks of the next interval is forecast from the past ones by two models of unlike
kind: SARIMAX, which carries the season (``sarimax``), and a small recurrent network, which follows
changes (``gru``). ``lsp`` combines them, ``quantiles`` says how far off such forecasts were, and
``pool`` turns a volume into a number of nodes. The past comes from the master's journal of events
(``history``). Nothing here does IO or reads a clock: ``hrm forecast`` and ``hrm autoscale`` do.

Source: Lu, Liu, Zhu, Mao, Lio, Hui, "RLPTO: A Reinforcement Learning-Based Performance-Time
Optimized Task and Resource Scheduling Mechanism for Distributed Machine Learning", IEEE TPDS 2023,
section on load sequence prediction (LSP), equations 1 to 3. What its text leaves open is chosen
here, and docs/forecasts.md has it.
"""
