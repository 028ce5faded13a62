"""Policies of pipelines: the node of a task (cluster), what runs together on a node (corun)."""
