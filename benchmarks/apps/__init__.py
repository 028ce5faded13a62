"""The applications that are measured: each is one file for a plain ``spark-submit``.

They know nothing of the manager that runs them. Each prints one JSON line at its end.
"""
