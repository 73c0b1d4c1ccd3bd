"""The decoder: configuration, weights, forward pass and sampling for the GPT-2 and Llama families."""
