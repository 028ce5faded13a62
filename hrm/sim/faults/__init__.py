"""What goes wrong: plans drawn from a seed, the network."""
