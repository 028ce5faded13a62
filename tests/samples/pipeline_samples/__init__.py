"""Pipelines that tests send to nodes: a package of its own, since all of it is sent with each."""
