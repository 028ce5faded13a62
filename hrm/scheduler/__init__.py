"""``hrm scheduler``: a scheduler in a process of its own, around ``core.scheduling.replica``."""
