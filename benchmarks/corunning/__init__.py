"""Placement policies where containers on one GPU slow each other down, as was measured.

``simulated`` runs jobs through the production core in virtual time, with run times that depend on
what shares the unit; ``python -m benchmarks.corunning`` compares policies in it.
"""
