"""The engine: sequences, block pool, prefix cache, scheduler, and the executor seam. No torch outside executors."""
