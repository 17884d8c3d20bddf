"""What a process tells about itself: typed events in, log lines and metrics out."""
