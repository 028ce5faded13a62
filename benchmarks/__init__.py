"""What HRM is measured by: one module a benchmark, run as ``python -m benchmarks.NAME``.

Each takes ``--quick`` and ``--json FILE``, compares its answers with an independent computation
before it reports a time, and says with what machine, versions and command its numbers came about.
"""
