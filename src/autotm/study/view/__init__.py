"""A plan to look into: as a page, as buffers that packers read, and as a measured step that trace viewers open."""
