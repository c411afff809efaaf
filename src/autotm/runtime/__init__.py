"""Running programs: kernels and moves over two pools, verified against the plain step and timed."""
