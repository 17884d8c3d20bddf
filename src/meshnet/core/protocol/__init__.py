"""The node protocol without a socket: messages, their headers and bodies, their limits."""
