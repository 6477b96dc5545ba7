"""How text becomes rows: readers, cleaning, tokenizers, packing, shards, order. Knows nothing of torch or ray."""
