"""Spark's own bundled Python examples on a cluster of HRM: ``python -m benchmarks.examples``."""
