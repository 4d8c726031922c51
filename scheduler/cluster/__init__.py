"""Many replicas: placement (placement.py), a gateway's copy of the state (directory.py), supervision (supervisor.py),
and the one module that imports ray (ray_runtime.py)."""
