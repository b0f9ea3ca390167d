"""The backends, which implement the contract; each is found by name through the registry."""
