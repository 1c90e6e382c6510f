"""What lies outside: folders here and in buckets, YAML as people write it, users' own code."""
