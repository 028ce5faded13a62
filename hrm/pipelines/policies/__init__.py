"""Policies of pipelines: the node of a task (cluster), what runs together at a node (corun)."""
