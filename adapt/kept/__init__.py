"""Text that a server keeps of tenants that asked for it, for `opensled adapt` to learn from; of others, nothing."""
