"""Readers of data sets in the formats in which they are published. The readers check every length
that a file states."""
