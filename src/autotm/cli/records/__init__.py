"""The commands that read what the study's jobs left."""
