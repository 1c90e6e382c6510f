"""Figures: data in, figure out."""
