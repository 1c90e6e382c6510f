"""The gradient noise scale: how much of a gradient is noise, in any training. Needs torch alone."""
