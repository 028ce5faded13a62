"""The shared terms: model, resources and their feasibility, lifecycles, bounds, records.

Imports nothing of the core but itself.
"""
