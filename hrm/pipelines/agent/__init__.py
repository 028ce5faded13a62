"""Pipelines on a node: shares of GPUs for programs that ask the agent."""
