"""What a model's tokens weigh and cost, frozen as versions that only a command changes."""
