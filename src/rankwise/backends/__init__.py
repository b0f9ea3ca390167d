"""What moves the bytes: one file a backend, found by name through the registry."""
