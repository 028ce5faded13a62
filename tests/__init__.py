"""Tests of HRM; the folders mirror the package."""
