"""Pipelines at the master: the service, tasks, files of results."""
