"""Which operators of a step share a kernel: decisions, the groups they ask for, and what a step of those takes."""
