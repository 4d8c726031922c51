"""OpenSLED: speculative LLM decoding from the edge. The shared vocabulary of device and server lives here."""

import os

__version__ = "0.1.0"

# Libraries that report to their makers unless told otherwise (Ray: scheduler/cluster/ray_guard.py). This module is
# loaded before all others of OpenSLED, so before the libraries, which read the variables once. The user's values stay.
NO_REPORTS = {
    "ORT_DISABLE_TELEMETRY": "1",  # onnxruntime: its Privacy.md; an event at its import, before its API can be called
    "HF_HUB_DISABLE_TELEMETRY": "1",  # huggingface_hub: torch's version with each download
}

for _name, _value in NO_REPORTS.items():
    os.environ.setdefault(_name, _value)
