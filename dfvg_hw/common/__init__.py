"""Small parts that every block of the core uses: arithmetic helpers, memories, stream buffers."""
