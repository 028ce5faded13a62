"""``hrm scheduler``: a scheduler in a process of its own, around ``hrm.core.replica``."""
