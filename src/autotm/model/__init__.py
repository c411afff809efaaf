"""What all of autotm speaks of, and its files; nothing here measures, places or draws."""
