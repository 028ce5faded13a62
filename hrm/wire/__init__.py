"""Between protobuf and the core's dataclasses: where fields are checked."""
