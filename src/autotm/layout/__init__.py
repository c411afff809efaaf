"""Addresses: a byte offset for every stay of a plan, and the program that runs it."""
