"""Tests of HRM, in folders by part; those of pipelines are in several."""
