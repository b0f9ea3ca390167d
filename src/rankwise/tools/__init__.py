"""The `rankwise` command."""
