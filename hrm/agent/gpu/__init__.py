"""GPUs of a node: devices, memory, MPS, sockets of containers that share one."""
