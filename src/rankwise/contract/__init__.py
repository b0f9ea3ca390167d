"""The contract between the array level and the engines: words, types, errors. Standard library only."""
