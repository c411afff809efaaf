"""Schedules: how every operator is computed fast, and which one a kernel gets."""
