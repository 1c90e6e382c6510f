"""Runs trials on Ray. No other package imports Ray."""
