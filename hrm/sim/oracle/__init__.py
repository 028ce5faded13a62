"""What must hold after every event: safety, liveness, and the guarantees given to each process."""
