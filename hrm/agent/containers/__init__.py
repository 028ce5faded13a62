"""Containers as processes: their directories, logs, supervision and final messages."""
