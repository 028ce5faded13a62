"""What runs next to a driver: the AppMaster's state machine."""
