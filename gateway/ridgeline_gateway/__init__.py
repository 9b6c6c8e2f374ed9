"""What tenants touch: the OpenAI-compatible HTTP API, keys, quotas, tokenising, and streams of text."""
