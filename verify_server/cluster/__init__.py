"""A server of many replicas: gateway, routing, and the replica's side."""
