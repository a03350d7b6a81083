"""Tiles with rows of several query heads per KV head: the code that prefill and MLA share."""
