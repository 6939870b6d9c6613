"""What a run needs before it is started: memory, tokens and hours, from the configuration alone."""
