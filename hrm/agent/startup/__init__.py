"""Fast starts: warm JVMs, archives of classes."""
