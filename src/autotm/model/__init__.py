"""Data structures that all packages share, and their files; nothing here measures, places or draws."""
