"""The commands that show a plan to other eyes."""
