"""What runs in an agent: the node's state machine, its partitioning, preemption for streams."""
