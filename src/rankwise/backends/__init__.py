"""The backends, which move the bytes; each is found by name through the registry."""
