"""The applications that are measured: each is one file for a plain ``spark-submit``.

They do not depend on the manager that runs them. Each prints one JSON line at its end.
"""
