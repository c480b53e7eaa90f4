"""Device memory: AXI4 managers, the prefetch FIFO, and the word streams they feed."""
