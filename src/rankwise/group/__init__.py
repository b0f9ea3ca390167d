"""The group object and its operations on arrays, over any communicator."""
