"""HRM on Spark's side: the plugin in the driver, its AppMaster process, the launch of executors."""
