"""Drives a sweep, whatever trains it."""
