"""Pipelines that tests send to nodes: a package of its own, for all of it travels with each."""
