"""Queues of applications: their tree, what each may have, and what each has."""
