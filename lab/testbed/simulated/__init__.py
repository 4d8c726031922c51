"""The pieces of the simulator (lab/testbed/simulator.py): clock, links, drafts, devices, servers, users."""
