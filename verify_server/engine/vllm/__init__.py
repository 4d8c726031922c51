"""Engine vllm: vLLM computes the target, OpenSLED decides what it verifies and which tokens stand.

Nothing of vLLM is patched; its plug-in points are used. A step, in the order of the files that it passes:

- `target.py` is what the machine sees of it: which sequences vLLM has, and what became of each in a step.
- `core.py` drives vLLM's EngineCore in this process: sequences come and go, one call is one step.
- `scheduler.py` is vLLM's scheduler with the plan of the fleet: a draft or none for each sequence; what waits for its
  device is held back. vLLM allocates, batches, preempts, rolls back.
- `worker.py` is vLLM's worker, which decides each sequence's rows by the rule `match` with shared noise. Its texts are
  those of every other engine with the same logits, with any drafts.

`served.py` is `opensled serve --engine vllm`. `drafters.py` names what of vLLM drafts beside the devices, which
`proposals.py` hands to the machine as drafts of the server; `arguments.py` passes vLLM's own arguments through,
`versions.py` refuses a vLLM whose plug-in points may differ, and `selftest.py` tries all of it at load.
"""
