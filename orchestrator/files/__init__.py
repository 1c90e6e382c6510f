"""What lies outside of the program: folders here and in buckets, YAML files, users' own code."""
