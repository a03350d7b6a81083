"""General fits that are tried last: sums of tensors, numbers of some keys, masks of each query."""
