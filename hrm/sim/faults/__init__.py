"""What goes wrong: plans drawn from a seed, the network, shrinking of a plan that fails."""
