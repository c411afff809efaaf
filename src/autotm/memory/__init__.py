"""Fast and slow memory: pools, copies between them, and delays that emulate slow memory."""
