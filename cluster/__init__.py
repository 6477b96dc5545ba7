"""Where work runs: the Ray session, retryable tasks, and the launch of training, by Ray or without it."""
