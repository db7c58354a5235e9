"""Progress and phase sources on the node: watched, followed, read."""
