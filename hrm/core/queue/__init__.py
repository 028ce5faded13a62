"""The queues of a resource unit: what starts, what is passed, and how long a container waits."""
