"""The worker: a front process that speaks gRPC, and a core process that holds the engine and the device."""
