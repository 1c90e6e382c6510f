"""What is to be trained: a sweep file, the studies it comes to, and what they will take."""
