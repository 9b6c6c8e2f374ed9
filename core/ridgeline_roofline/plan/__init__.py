"""Plans: a question, its inputs, and the answers with their working."""
