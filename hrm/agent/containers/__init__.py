"""Containers as processes: their directories, logs, supervision and last words."""
