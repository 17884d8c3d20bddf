"""One generation as machines: events in, actions out. See machine.py and admission.py."""
