"""Models and pure decisions: no input or output, no clock, no chance that is not passed in."""
