"""gloo: torch's ProcessGroupGloo, over TCP between any hosts."""
