"""What Ridgeline's components agree on: ids, errors, clock, hashes, KV groups, step shapes, wire messages. No I/O."""
