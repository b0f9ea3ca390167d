"""The contract between the array level and the backends: interfaces, types and errors. Standard library only."""
