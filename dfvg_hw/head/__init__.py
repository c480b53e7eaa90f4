"""Output head: the best next tokens of each row, and their log-probabilities."""
