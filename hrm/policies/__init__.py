"""Policies propose, the core commits: one small module a policy."""
