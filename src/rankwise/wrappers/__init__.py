"""Communicators that wrap another one and add what its backend does not do itself."""
