"""Between protobuf and the core's dataclasses: the only place where the two meet."""
