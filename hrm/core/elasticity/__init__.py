"""How many workers a training application holds: from what it reports to what it is to have."""
