"""Exit codes that one process sets and another acts on."""

USAGE = 2
"""Bad arguments, a busy port, a missing model, too little memory: the caller can mend it."""

GPU_FAULT = 86
"""A worker's second device fault within `GPU_FAULT_WINDOW_S`: the operator moves the pod to another node."""

GPU_FAULT_WINDOW_S = 600
