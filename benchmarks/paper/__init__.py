"""The HRM paper's evaluation, run again."""
