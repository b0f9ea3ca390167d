"""One communicator around another, which adds what a backend does not do itself."""
