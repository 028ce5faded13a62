"""Pipelines as users write and submit them."""
