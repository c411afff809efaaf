"""The commands: each stage of the pipeline alone, questions about its files, and the machine they are for."""
