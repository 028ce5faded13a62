"""The parts of ``benchmarks.scheduler``: one module per figure, so that they are not confused."""
