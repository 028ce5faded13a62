"""Drivers that run on nodes: their files, their processes, their runner."""
