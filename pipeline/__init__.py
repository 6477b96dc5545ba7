"""What a person asks for: the command line, experiments, evaluation, tracking, report, export."""
