"""Starting the ranks of a job, finding this process's rank in its environment, and merging the ranks' output."""
