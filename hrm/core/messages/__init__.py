"""Events, commands and what they carry. Importing them loads nothing that decides."""
