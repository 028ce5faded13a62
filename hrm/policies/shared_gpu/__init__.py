"""Which waiting jobs start together on one shared GPU."""
