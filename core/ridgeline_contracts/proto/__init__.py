"""The gRPC contracts (`*.proto`) and the stubs generated from them by `make proto`."""
