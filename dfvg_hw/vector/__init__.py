"""Vector unit: quantisation, norms, embedding, rotary tables, softmax and the head's top-k."""
