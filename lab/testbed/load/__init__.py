"""Load on a whole fleet: what is asked, when, by whom, and what came back. Emulated, simulated and real alike."""
