"""What a step costs and what follows from it: step model, memory ledger, decisions. Pure: no I/O, no
clock."""
