"""Real memories by means of Linux: pages bound to nodes or placed by its policies, files that are memory, locks."""
