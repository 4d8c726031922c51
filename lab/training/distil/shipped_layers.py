"""What is shipped of a trained draft: its layers and last norm, quantized, without the embedding.

Names and layouts are those of llama.cpp's `convert_hf_to_gguf.py` (see lab/training/export_gguf.py).
"""

from pathlib import Path

import gguf
import numpy as np
from transformers import LlamaForCausalLM

from lab.training.export_gguf import add_tensor, gguf_name, permuted

KIND = "Q4_1"  # as the target's own layers
EMBEDDING = "model.embed_tokens.weight"


def write_layers(draft: LlamaForCausalLM, path: Path, name: str, kind: str = KIND) -> None:
    """`path`: a GGUF file with the keys in which the draft differs from its target, and its trained tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_block_count(draft.config.num_hidden_layers)
    writer.add_embedding_length(draft.config.hidden_size)
    writer.add_license("apache-2.0")
    for key, tensor in draft.state_dict().items():
        if key in (EMBEDDING, "lm_head.weight"):
            continue
        array = permuted(key, tensor.detach().numpy().astype(np.float32), draft.config)
        add_tensor(writer, gguf_name(key), array, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
