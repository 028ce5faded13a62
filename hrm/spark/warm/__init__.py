"""Driver JVMs started ahead of demand, for the user who submits on this machine."""
