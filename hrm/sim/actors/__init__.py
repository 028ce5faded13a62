"""What lives in the simulated cluster: master, machines, drivers, schedulers, impostors."""
