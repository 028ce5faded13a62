"""Queues of applications: what is stated of them, their tree, rules of placement, division."""
