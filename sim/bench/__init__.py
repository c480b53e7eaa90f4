"""Measurements of simulation speed."""
