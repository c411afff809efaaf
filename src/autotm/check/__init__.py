"""Checks whether plans and programs are legal; shares no code with what makes them."""
