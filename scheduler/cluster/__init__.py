"""Many replicas: placement, supervision, and the one module that imports ray."""
