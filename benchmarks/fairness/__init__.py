"""Two-level fairness on unlike platforms, in a fluid model: the world, runs, scenarios, claims.

``world`` is what there is, ``interference`` and ``measured`` say how tenants slow each other down,
``fluid`` runs one pair of policies, ``scenarios`` varies the world as the source does, ``systems``
lists the pairs, ``claims`` holds what the source claims against what was found, ``properties``
counts which rules keep properties of fair division. The command is ``benchmarks.paper.fairness``.
"""
