"""Plans what is trained: reads a sweep file, derives its studies and estimates their time and
cost."""
