"""Machines that are not here: a target's step time, a device's draft speed, stretched to those of their profiles."""
