"""HRM on Spark's side: the plugin in the driver, the AppMaster beside it, the executors' launch."""
