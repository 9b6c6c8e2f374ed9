"""Quota: what each tenant may use, reserved before it is used and settled exactly once."""
