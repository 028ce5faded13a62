"""Conversion between protobuf and the core's dataclasses; fields are checked here."""
