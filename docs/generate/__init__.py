"""Writes the documents that are drawn from the code; run by ``make docs``."""
