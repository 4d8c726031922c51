"""What vLLM for CPUs reads at its import."""

import os

for name, value in {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # bound threads wait for the other programs of their cores
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # a child process looks for a package `vllm`; that for CPUs is `vllm-cpu`
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}.items():
    os.environ.setdefault(name, value)
