"""The router: which workers exist, and which of them a request should run on.
Tokens never pass through it."""
