"""What surrounds this process: its environment, files, addresses, CPUs and signals."""
