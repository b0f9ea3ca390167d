"""Running jobs seen from outside, and traces."""
