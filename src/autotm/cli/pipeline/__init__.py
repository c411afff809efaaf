"""The commands that run a stage of the pipeline each, on the files of the rules."""
