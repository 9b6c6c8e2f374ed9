"""The usage ledger: one record a settled request, raw counts and the price version, so that bills can be redone."""
