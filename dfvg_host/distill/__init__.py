"""Training a small LLaMA-shaped draft on text that the target itself wrote."""
