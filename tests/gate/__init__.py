"""``gate``, as the command line runs it."""
