"""From bytes to events, phases and rates: all pure."""
