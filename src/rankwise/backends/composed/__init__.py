"""The whole contract, built from the few ways in which another engine moves bytes."""
