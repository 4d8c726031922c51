"""OpenSLED: speculative LLM decoding from the edge. The shared vocabulary of device and server lives here."""

__version__ = "0.1.0"
