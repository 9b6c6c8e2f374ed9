"""`ridgeline model`: fetches, converts, lists, verifies and removes models. Needs no torch.

Other commands use `commands.open_fetcher(context, progress).fetch(name_or_path).folder`, which returns at
once for a model that is there already.
"""
