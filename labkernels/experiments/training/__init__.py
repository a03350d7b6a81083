"""A small language model whose attention is ours, trained again and again."""
