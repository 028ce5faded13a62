"""Tests of what the benchmarks claim: their statistics, their checks, their applications."""
