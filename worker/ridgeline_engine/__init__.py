"""The engine: sequences, block pool, prefix cache, scheduler, executor seam. No torch but in executors."""
