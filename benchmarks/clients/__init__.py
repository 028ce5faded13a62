"""Public clients of Spark on local mode and on HRM: ``python -m benchmarks.clients``."""
