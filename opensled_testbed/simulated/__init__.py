"""The pieces of the simulator (opensled_testbed/simulator.py): clock, links, drafts, devices, servers, users."""
