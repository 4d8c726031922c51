"""The soak: a fleet asks without end while a nemesis breaks servers, links, disks and clocks; every token is checked.

The nemesis is in the style of etcd's robustness tests and of Jepsen: a seeded schedule of faults, and a checker that
knows the truth.
"""
