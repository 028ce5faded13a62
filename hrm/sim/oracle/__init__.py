"""What must hold after every event: safety, liveness, what each process was promised."""
