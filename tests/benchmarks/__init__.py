"""Tests of the benchmarks: their statistics, their checks, their applications."""
