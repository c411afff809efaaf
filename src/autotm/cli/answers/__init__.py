"""The commands that answer questions about steps and plans."""
