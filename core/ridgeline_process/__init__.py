"""What the shells of the long-running processes share: log lines and the health-only port. Decides nothing."""
