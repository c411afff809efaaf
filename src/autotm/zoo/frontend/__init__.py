"""Networks from elsewhere, as networks of ours: a room for each source, and beside them what turns layouts."""

__all__: list[str] = []
