"""HRM: a cluster resource manager for Apache Spark.

Importing this package imports nothing else, so that short-lived processes (the AppMaster, the
container supervisor, the plugin build) start quickly.
"""

__version__ = "0.1.0"
