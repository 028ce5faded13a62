"""Tests of the pipelines: answers against truth, CPU against GPU versions."""
