"""Tests of the pipelines: results against truth, CPU against GPU versions."""
