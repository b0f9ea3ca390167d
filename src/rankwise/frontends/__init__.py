"""Other languages' and libraries' ways to the array level."""
