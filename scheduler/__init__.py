"""Scheduling policies: pure functions from a snapshot to a plan. No clock, torch, grpc or ray here."""

from opensled.registry import Registry

POLICIES = Registry("policy", {"fcfs": "scheduler.fcfs:Fcfs", "static": "scheduler.static:Static"})
