"""Pipelines on a node: workers, their cores and memory, GPUs, the node's policy."""
