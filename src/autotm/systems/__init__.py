"""Programs with control flow in several systems, and their times in turn; each system in a process of its own."""
