"""The array level: operations on arrays over any communicator."""
