"""Engine torch: decoders of Hugging Face, batched over paged KV memory."""
