"""`rankwise doctor`: what this machine has, which backends work on it, and what would bring the others."""
