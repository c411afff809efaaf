"""The pipeline's stages: each reads files, asks the packages, and writes its files whole, saying where they come from.

Snakemake's scripts and the commands call these; nothing else decides how files and packages meet.
"""
