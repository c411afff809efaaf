"""Programs on a device's streams: kernels in order, copies beside them, events where one must wait for another."""
