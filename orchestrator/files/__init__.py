"""Access to what lies outside of the program: folders on this machine and in buckets, YAML files,
and users' own code."""
