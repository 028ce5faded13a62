"""Drivers that were submitted to run on nodes."""
