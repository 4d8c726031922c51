"""Engine llamacpp: GGUF files with llama.cpp."""
