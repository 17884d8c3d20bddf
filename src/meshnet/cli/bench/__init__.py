"""`meshnet bench`: what a mesh costs on this machine, beside its baselines and its peers."""
