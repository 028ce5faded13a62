"""The parts of ``benchmarks.scheduler``: one module a figure, so that none is taken for another."""
