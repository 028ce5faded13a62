"""What runs in a master: applications, nodes, placement, recovery, the gate before its disk."""
