"""Tests of engine vllm: they need vLLM, and so the environment that `make vllm-install` makes."""
