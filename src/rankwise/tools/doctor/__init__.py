"""`rankwise doctor`: what this machine has, which backends work on it, and how to get the others."""
