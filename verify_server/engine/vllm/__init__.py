"""vLLM as the target's engine: it computes the steps that devices' drafts enter."""
