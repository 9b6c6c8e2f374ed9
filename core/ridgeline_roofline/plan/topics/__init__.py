"""One module a topic of `ridgeline plan`."""
