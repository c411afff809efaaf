"""Views of a plan: as a page, as buffers that packers read, and as a measured step that trace viewers open."""
