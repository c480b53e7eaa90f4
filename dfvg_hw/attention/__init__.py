"""Attention: score memory, softmax, and the merging of a pass's own keys and values."""
