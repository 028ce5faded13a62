"""Benchmarks of HRM: one module each, run as ``python -m benchmarks.NAME``.

Each takes ``--quick`` and ``--json FILE``, compares its results with an independent computation
before it reports a time, and records the machine, versions and command of its numbers.
"""
