"""Where work runs: the Ray session, retryable tasks, the Ray Train launch."""
