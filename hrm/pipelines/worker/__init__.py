"""A worker of a pipeline: the container that runs its tasks, their steps, what it reports."""
