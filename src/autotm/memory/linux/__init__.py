"""What Linux does for real memories: pages bound to nodes or placed by its policies, files that are memory, locks."""
