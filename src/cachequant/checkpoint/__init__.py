"""Quantized checkpoints: safetensors with int8 codes and scales under Hugging Face's names, checked when loaded."""
