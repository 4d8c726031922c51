"""OpenSLED inside a stock `vllm serve`: devices' drafts are verified in the same steps as other users' requests."""
