"""Draft devices: what they all look like to the decode loop, and the ones that need no card."""
