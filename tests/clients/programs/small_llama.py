"""The shape of the Llama that several programs split over their ranks."""

SHAPE = {
    "vocab_size": 2048,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
}


def llama():
    """One with random weights, the same on every rank; they are large enough that tokens differ from each other."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SHAPE, initializer_range=0.2, eos_token_id=None))
