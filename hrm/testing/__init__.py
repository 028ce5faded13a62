"""Test doubles that HRM uses itself, public so that users can test their own policies with them."""

from hrm.testing.virtual import VirtualCluster, unit

__all__ = ["VirtualCluster", "unit"]
