"""The shape of a loaded network, for what a step of it reads and computes on a machine of which there is a profile."""

from transformers import PreTrainedModel

from hw_profiles.profiles import TargetShape

# How configurations spell the experts of a layer; the first one that is there counts.
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def shape_of(network: PreTrainedModel, id: str) -> TargetShape:
    """Counted on the weights themselves; KV is kept in the precision of what is not quantized."""
    config = network.config.get_text_config(decoder=True)
    params = network.num_parameters()
    experts = next((count for name in EXPERTS if (count := getattr(config, name, None))), 0)
    chosen = getattr(config, "num_experts_per_tok", None) or experts
    of_experts = sum(weight.numel() for name, weight in network.named_parameters() if ".experts." in name)
    stored = sum(weight.numel() * weight.element_size() for weight in network.parameters())
    heads = config.num_attention_heads
    return TargetShape(
        id=id,
        name=id,
        source="the weights as loaded",
        params=params,
        active_params=params - of_experts * (1 - chosen / experts) if experts else params,
        layers=config.num_hidden_layers,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        experts=experts if chosen < experts else 0,
        experts_per_token=chosen if chosen < experts else 0,
        weight_bits=8 * stored / params,
        kv_bits=8.0 * network.dtype.itemsize,
    )
