"""`ridgeline tenant`: tenants, keys, quotas, prices and usage of a running platform, over its admin API."""
