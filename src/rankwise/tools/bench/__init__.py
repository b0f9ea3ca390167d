"""`rankwise bench`: how fast the operations are here, next to other libraries on the same machine."""
