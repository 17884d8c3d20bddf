"""The layers of a step as loops compiled by numba; importing a module of it fails without numba."""
