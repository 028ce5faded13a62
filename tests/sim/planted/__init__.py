"""Bugs to plant, each by patching code; ``tests/sim/test_planted_bugs.py`` plants them."""
