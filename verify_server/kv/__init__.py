"""KV memory: block tables, blocks shared by prefix, and preemption when memory is short."""
