"""The size of a cluster: how many nodes there should be, and which of them go."""
