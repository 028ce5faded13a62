"""What runs beside a driver: the AppMaster's state machine."""
