"""Pipelines at a node: workers, their places and memory, GPUs, the node's policy."""
